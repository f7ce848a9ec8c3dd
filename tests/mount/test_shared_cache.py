"""A cache shared by hosts: the source serves each byte once, and nothing that happens to it is felt."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.mounts import Mounted, MountFactory, wait_until
from tests.servers import BUCKET, Fault, FaultProxy, Pattern, S3Endpoint, listing_server
from tests.servers.distant import distant_server

pytestmark = pytest.mark.fuse

CHUNK = 4 << 20
SIZE = 20_000
Proxy = Callable[[S3Endpoint], FaultProxy]
Buckets = Callable[[S3Endpoint], str]


@pytest.fixture
def host(mount: MountFactory, weed: S3Endpoint, bucket: Buckets) -> Callable[..., Mounted]:
    """`host(origin)` is a mount with a cache directory of its own, and the same shared cache for all."""
    name = bucket(weed)

    def make(origin: S3Endpoint, *, tier: str = "", start: bool = True, **options: str) -> Mounted:
        shared = {"shared_cache": f"s3://{name}/some/prefix", "shared_cache_endpoint_url": tier or weed.url}
        mounted = mount(f"s3://{BUCKET}", origin, start=False, **(shared | options))
        mounted.env |= weed.env()
        return mounted.mount().crawled() if start else mounted

    return make


def files(count: int) -> dict[bytes, bytes]:
    return {b"d%d/%04d" % (n % 7, n): b"%06d" % n * 500 for n in range(count)}


def names_of(objects: dict[bytes, bytes]) -> list[str]:
    return [key.decode() for key in objects]


def read_all(mounted: Mounted, objects: dict[bytes, bytes], seed: int = 0) -> float:
    """All of it in a random order, 8 at once; seconds. Fails when a byte is wrong."""
    names = random.Random(seed).sample(names_of(objects), len(objects))
    begin = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        datas = dict(
            zip(names, pool.map(lambda name: (mounted.path / name).read_bytes(), names), strict=True)
        )
    seconds = time.monotonic() - begin
    assert datas == {name: objects[name.encode()] for name in names}
    return seconds


def written(mounted: Mounted, count: int) -> None:
    wait_until(lambda: mounted.count("shared_writes") >= count, "the shared cache to be written")


@pytest.mark.alone
@pytest.mark.slow
def test_three_hosts_that_read_at_the_same_time_fetch_each_object_once(host: Callable[..., Mounted]) -> None:
    keys = [f"d{n % 10}/{n:05d}" for n in range(300)]
    with distant_server(keys, SIZE, 0.02) as origin:
        hosts = [host(origin.endpoint) for _ in range(3)]
        bodies = {mounted: Pattern(SIZE).read(0, SIZE) for mounted in hosts}

        def read(number: int) -> None:
            names = random.Random(number).sample(keys, len(keys))
            with ThreadPoolExecutor(4) as pool:
                for data in pool.map(lambda name: (hosts[number].path / name).read_bytes(), names):
                    assert data == bodies[hosts[number]]

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(read, range(3)))
        assert origin.fetched() == dict.fromkeys(keys, 1)
        assert sum(mounted.count("shared_hits") for mounted in hosts) == 2 * len(keys)


@pytest.mark.alone
def test_three_hosts_that_read_a_large_file_fetch_each_chunk_once(
    host: Callable[..., Mounted], proxy: Proxy
) -> None:
    large = Pattern(6 * CHUNK + 1234)
    with listing_server({b"large": large}) as (_, endpoint):
        between = proxy(endpoint)
        between.takes = 0.05
        origin = S3Endpoint(between.url, "t", "t", "us-east-1", flat=True)
        hosts = [host(origin) for _ in range(3)]

        def read(number: int) -> None:
            with open(hosts[number].path / "large", "rb") as file:
                for chunk in random.Random(number).sample(range(7), 7):
                    length = min(CHUNK, large.size - chunk * CHUNK)
                    assert os.pread(file.fileno(), length, chunk * CHUNK) == large.read(chunk * CHUNK, length)

        between.forget()
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(read, range(3)))
        asked = [seen.headers["range"] for seen in between.seen("GET")]
        assert len(asked) == len(set(asked)) == 7


def test_what_one_host_has_read_another_reads_without_the_source(
    host: Callable[..., Mounted], proxy: Proxy
) -> None:
    """Small files and large ones, also by a warm-up; what was not written yet is at the unmount."""
    objects = files(60)
    large = Pattern(2 * CHUNK + 5)
    with listing_server({**objects, b"large": large}) as (_, endpoint):
        between = proxy(endpoint)
        origin = S3Endpoint(between.url, "t", "t", "us-east-1", flat=True)
        first = host(origin)
        read_all(first, objects)
        assert (first.path / "large").read_bytes() == large.read(0, large.size)
        first.umount()
        second, third = host(origin), host(origin)
        between.forget()
        read_all(second, objects, 1)
        assert (second.path / "large").read_bytes() == large.read(0, large.size)
        assert third.command("warm", str(third.path)).returncode == 0
        assert between.counts()["GET"] == 0
        assert second.count("shared_hits") == third.count("shared_hits") == len(objects) + 3
        assert third.status()["shared_cache"] == {
            "url": third.options["shared_cache"],
            "small": "fine",
            "large": "fine",
        }
        assert "shared" in second.command("status", str(second.path)).stdout


def test_a_source_that_is_a_directory_is_shared_too(
    mount: MountFactory, host: Callable[..., Mounted], tmp_path: os.PathLike[str]
) -> None:
    """Such as a kernel's NFS mount, which has the same numbers and times on every host."""
    objects = files(20)
    for name, data in objects.items():
        path = os.path.join(tmp_path, "data", os.fsdecode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
    with listing_server({}) as (_, endpoint):
        shared = host(endpoint, start=False)
        keep = {k: v for k, v in shared.options.items() if k.startswith("shared")}
    for hits in (0, len(objects)):
        mounted = mount(f"{tmp_path}/data", start=False, **keep)
        mounted.env |= shared.env
        mounted.env["GPUFS_TEST_MOUNT"] = str(mounted.path)
        mounted.mount()
        read_all(mounted, objects)
        assert mounted.count("shared_hits") == hits
        written(mounted, len(objects) - hits)


@pytest.mark.parametrize("damage", ["flipped", "truncated", "foreign", "empty"])
def test_an_entry_that_is_damaged_is_fetched_from_the_source(
    host: Callable[..., Mounted], weed: S3Endpoint, damage: str
) -> None:
    objects = files(12)
    with listing_server({**objects, b"large": Pattern(CHUNK + 9)}) as (_, endpoint):
        first = host(endpoint)
        read_all(first, objects)
        assert (first.path / "large").read_bytes() == Pattern(CHUNK + 9).read(0, CHUNK + 9)
        written(first, len(objects) + 2)
        client, name = weed.client(), first.options["shared_cache"].split("/")[2]
        listed = client.list_objects_v2(Bucket=name)["Contents"]
        entries = {
            each["Key"]: client.get_object(Bucket=name, Key=each["Key"])["Body"].read() for each in listed
        }
        bodies = list(entries.values())
        for number, (key, body) in enumerate(entries.items()):
            changed = {
                "flipped": body[:-1] + bytes([body[-1] ^ 1]),
                "truncated": body[: len(body) // 2],
                "foreign": bodies[number - 1],
                "empty": b"",
            }[damage]
            client.put_object(Bucket=name, Key=key, Body=changed)
        second = host(endpoint)
        read_all(second, objects)
        assert (second.path / "large").read_bytes() == Pattern(CHUNK + 9).read(0, CHUNK + 9)
        assert second.count("shared_corrupt") == len(objects) + 2 and second.count("shared_hits") == 0
        written(second, len(objects) + 2)
        third = host(endpoint)
        read_all(third, objects)
        assert third.count("shared_hits") == len(objects)


@pytest.mark.alone
@pytest.mark.parametrize("trouble", ["stall", "delay", "status", "reset", "dribble"])
def test_a_shared_cache_that_fails_is_not_felt_for_long(
    host: Callable[..., Mounted], weed: S3Endpoint, proxy: Proxy, trouble: str
) -> None:
    """2 s at most, for those who wait when it begins; the rest is for the source, and the machine."""
    objects = files(400)
    with listing_server(objects) as (_, endpoint):
        between = proxy(weed)
        mounted = host(endpoint, tier=between.url)
        some = dict(list(objects.items())[:20])
        read_all(mounted, some)
        between.add(
            {
                "stall": Fault("stall"),
                "delay": Fault("delay", seconds=60),
                "status": Fault("status", status=500, code="InternalError"),
                "reset": Fault("reset"),
                "dribble": Fault("dribble", seconds=0.3),
            }[trouble]
        )
        begin = time.monotonic()
        read_all(mounted, objects)
        assert time.monotonic() - begin < 5
        between.clear()


def test_a_shared_cache_that_is_gone_and_comes_back(
    host: Callable[..., Mounted], weed: S3Endpoint, proxy: Proxy
) -> None:
    objects = files(90)
    parts = [dict(list(objects.items())[n : n + 30]) for n in range(0, 90, 30)]
    with listing_server(objects) as (_, endpoint):
        between = proxy(weed)
        mounted = host(endpoint, tier=between.url)
        read_all(mounted, parts[0])
        between.refuse()
        read_all(mounted, parts[1])
        between.listen()
        wait_until(lambda: _looked_at(mounted, objects), "the shared cache to be used again")
        mounted.umount()
        other = host(endpoint, tier=between.url)
        read_all(other, objects)
        assert other.count("shared_hits") >= 30


def _looked_at(mounted: Mounted, objects: dict[bytes, bytes]) -> bool:
    """Read all again from nothing, which looks at the shared cache now and then."""
    mounted.command("evict", str(mounted.path))
    read_all(mounted, objects)
    return bool(mounted.status()["shared_cache"]["small"] == "fine")


def test_a_mount_whose_shared_cache_was_never_there(
    host: Callable[..., Mounted], mount: MountFactory
) -> None:
    objects = files(50)
    with listing_server(objects) as (_, endpoint):
        mounted = host(endpoint, tier="http://127.0.0.1:9")
        read_all(mounted, objects)
        assert mounted.status()["shared_cache"]["small"] == "left_alone"
        assert mounted.log().count("is left alone, the source serves") <= 2


@pytest.mark.parametrize("status, code", [(507, "InsufficientStorage"), (403, "AccessDenied")])
def test_a_shared_cache_that_takes_nothing_is_still_read(
    host: Callable[..., Mounted], weed: S3Endpoint, proxy: Proxy, status: int, code: str
) -> None:
    objects = files(100)
    with listing_server(objects) as (_, endpoint):
        first = host(endpoint)
        read_all(first, objects)
        first.umount()
        client, name = weed.client(), first.options["shared_cache"].split("/")[2]
        listed = client.list_objects_v2(Bucket=name)["Contents"]
        for each in listed[:50]:
            client.delete_object(Bucket=name, Key=each["Key"])
        between = proxy(weed)
        between.add(Fault("status", kind="PUT", status=status, code=code))
        mounted = host(endpoint, tier=between.url)
        read_all(mounted, objects)
        assert mounted.count("shared_hits") == 50
        assert mounted.status()["shared_cache"]["small"] == "read_only"
        log = mounted.log()
        assert log.count("takes nothing and is only read") == 1 and code in log
        assert between.counts()["PUT"] < 40


@pytest.mark.parametrize(
    "url, said",
    [
        ("file:///tmp/x", "write s3://"),
        ("s3://user:secret@bucket", "without credentials"),
        ("s3://", "no bucket"),
        ("https://me:secret@host/bucket", "write s3://"),
    ],
)
def test_a_url_that_cannot_be_is_refused_and_no_secret_is_repeated(
    host: Callable[..., Mounted], url: str, said: str
) -> None:
    with listing_server({}) as (_, endpoint):
        mounted = host(endpoint, start=False, shared_cache=url)
        mounted.may_log_errors = True
        done = mounted.command("mount", mounted.source, str(mounted.path), "-o", mounted.option_text())
        assert done.returncode != 0
        assert said in done.stderr and "secret" not in done.stderr
