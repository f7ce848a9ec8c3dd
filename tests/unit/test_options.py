"""Options: text in, typed values out, and errors that name what was meant."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufs.errors import UsageError
from gpufs.options import (
    MountConfig,
    Options,
    Size,
    describe,
    format_size,
    format_time,
    parse_options,
    parse_size,
    parse_time,
    read_config,
    split_options,
)

sizes = st.one_of(
    st.builds(Size, bytes=st.integers(0, 1 << 60)),
    st.builds(Size, percent=st.floats(0, 100, allow_subnormal=False)),
)
times = st.one_of(
    st.floats(0, 1e12, allow_subnormal=False), st.integers(0, 10**7).map(float), st.just(math.inf)
)
words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)


def options(text: str) -> Options:
    return parse_options(split_options(text))[0]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("800GiB", Size(bytes=800 << 30)),
        ("800gib", Size(bytes=800 << 30)),
        ("500M", Size(bytes=500 << 20)),
        ("1.5TB", Size(bytes=1_500_000_000_000)),
        ("2 kB", Size(bytes=2000)),
        ("12345", Size(bytes=12345)),
        ("12345B", Size(bytes=12345)),
        ("0", Size(bytes=0)),
        ("80%", Size(percent=80.0)),
        ("0.5%", Size(percent=0.5)),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: Size) -> None:
    assert parse_size(text) == size


@given(sizes)
def test_a_size_survives_being_written_and_read(size: Size) -> None:
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("text", "nearest"), [("5X", "'5GiB'"), ("5GX", "'5GiB'"), ("1TiBs", "'1TiB'"), ("7iB", "'7GiB'")]
)
def test_a_wrong_size_names_the_nearest_right_one(text: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"did you mean {nearest}"):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "big", "-1", "1e9", "%", "GiB", "101%", "1,5GB", "٣GiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"800GiB|at most 100%"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5m", 300.0),
        ("30s", 30.0),
        ("30", 30.0),
        ("1h", 3600.0),
        ("250ms", 0.25),
        ("7d", 604800.0),
        ("0", 0.0),
    ],
)
def test_times_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@given(times)
def test_a_time_survives_being_written_and_read(seconds: float) -> None:
    assert parse_time(format_time(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "nearest"), [("5min", "5m"), ("2hours", "2h"), ("foreverr", "forever"), ("inf", "forever")]
)
def test_a_wrong_time_names_the_nearest_right_one(text: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"did you mean '{nearest}'"):
        parse_time(text)


def test_the_readme_defaults_hold_when_nothing_is_said() -> None:
    plain = options("")
    assert (plain.cache_size, plain.min_free) == (Size(percent=80.0), Size(percent=5.0))
    assert (plain.metadata_ttl, plain.addressing, plain.fast_path) == (300.0, "auto", "auto")
    assert (plain.anonymous, plain.endpoint_url, plain.uid, plain.file_mode) == (False, None, None, None)


def test_the_cache_of_a_user_is_in_his_cache_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CACHE_HOME", "/home/u/.c")
    assert options("").cache_dir == Path("/home/u/.c/gpufs")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/invalid")
    monkeypatch.setenv("HOME", "/home/u")
    assert options("").cache_dir == Path("/home/u/.cache/gpufs")
    assert options("").allow_other is False


def test_root_shares_the_tree_and_uses_the_system_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert options("").allow_other is True
    assert options("").cache_dir == Path("/var/cache/gpufs")
    assert options("allow_other=false").allow_other is False


def test_every_option_is_read_from_one_argument() -> None:
    got = options(
        "endpoint_url=http://127.0.0.1:9000,region=eu-west-1,profile=p,addressing=path,anonymous,"
        "requester_pays=yes,ca_bundle=/etc/ca.pem,cache_dir=/nvme,cache_size=1GiB,min_free=1%,metadata_ttl=forever,"
        "uid=0,gid=100,file_mode=0640,dir_mode=750,allow_other=off,fast_path=off,log_level=debug"
    )
    assert got == Options(
        endpoint_url="http://127.0.0.1:9000",
        region="eu-west-1",
        profile="p",
        addressing="path",
        anonymous=True,
        requester_pays=True,
        ca_bundle=Path("/etc/ca.pem"),
        cache_dir=Path("/nvme"),
        cache_size=Size(bytes=1 << 30),
        min_free=Size(percent=1.0),
        metadata_ttl=math.inf,
        uid=0,
        gid=100,
        file_mode=0o640,
        dir_mode=0o750,
        allow_other=False,
        fast_path="off",
        log_level="debug",
    )


def test_a_backslash_keeps_a_comma_in_a_value() -> None:
    assert split_options(r"cache_dir=/a\,b,anonymous,profile=x\\y\z=1") == {
        "cache_dir": "/a,b",
        "anonymous": None,
        "profile": r"x\y\z=1",
    }


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,9}", fullmatch=True), words))
def test_any_value_can_be_escaped(settings: dict[str, str]) -> None:
    written = [f"{k}={v}".replace("\\", r"\\").replace(",", r"\,") for k, v in settings.items()]
    assert split_options(",".join(written)) == settings


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cache_szie=1G", "unknown option 'cache_szie'; did you mean 'cache_size'?"),
        ("metadata-ttl=5m", "did you mean 'metadata_ttl'?"),
        ("zzz", "unknown option 'zzz'; known are endpoint_url, region"),
        ("cache_size=5GX", "option 'cache_size': '5GX' is not a size"),
        ("cache_size", "option 'cache_size' needs a value: cache_size=SIZE"),
        ("region=", "option 'region' needs a value: region=NAME"),
        ("fast_path=offf", "'offf' is not one of auto, off; did you mean 'off'?"),
        ("anonymous=maybe", "'maybe' is neither true nor false"),
        ("bandwidth_limit=100", "'100' is less than 64KiB a second; write 100M"),
        ("bandwidth_limit=50%", "'50%' is not an amount per second"),
        ("uid=root", "'root' is not a numeric id"),
        ("uid=4294967295", "is not a numeric id"),
        ("file_mode=0999", "is not an octal mode such as 0444"),
        ("dir_mode=4755", "is not an octal mode"),
        ("endpoint_url=host:9000", "is not an address such as https://host"),
    ],
)
def test_a_wrong_option_is_named_with_the_nearest_right_one(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        options(text)
    assert says in str(caught.value)


def test_words_of_mount_and_fstab_are_accepted_silently() -> None:
    line = "rw,_netdev,nofail,noauto,user,users,defaults,ro,nosuid,nodev,noexec,exec,noatime,relatime,async"
    line += ",x-systemd.automount,x-systemd.idle-timeout=1min,X-mount.mkdir,comment=a=b"
    chosen, notes = parse_options(split_options(line + ",region=r"))
    assert chosen == Options(region="r")
    assert notes == []


def test_a_word_that_is_not_obeyed_is_told() -> None:
    assert parse_options(split_options("suid"))[1] == ["option 'suid' has no effect"]


def test_sloppy_turns_unknown_options_into_notes_but_not_wrong_values() -> None:
    assert parse_options({"bogus": "1"}, sloppy=True)[1] == ["unknown option 'bogus' is disregarded"]
    with pytest.raises(UsageError):
        parse_options({"cache_size": "x"}, sloppy=True)


def test_a_toml_file_has_the_same_keys(tmp_path: Path) -> None:
    file = tmp_path / "data.toml"
    file.write_text(
        'source = "s3://b/p"\nmountpoint = "/data"\nanonymous = true\ncache_size = 1000\n'
        'metadata_ttl = 2.5\nfile_mode = "0400"\nallow_other = false\n'
    )
    settings = read_config(str(file))
    assert (settings.pop("source"), settings.pop("mountpoint")) == ("s3://b/p", "/data")
    got, _ = parse_options(settings)
    assert (got.anonymous, got.cache_size, got.metadata_ttl) == (True, Size(bytes=1000), 2.5)
    assert (got.file_mode, got.allow_other) == (0o400, False)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("file_mode = 0o444", 'as a string: file_mode = "0444"'),
        ("[options]\nuid = 1", "options is a dict"),
        ("x = = 1", "not valid TOML"),
        (b"x = '\xff'", "not valid TOML"),
    ],
)
def test_a_wrong_toml_file_is_a_usage_error(tmp_path: Path, text: str | bytes, says: str) -> None:
    file = tmp_path / "data.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError) as caught:
        read_config(str(file))
    assert says in str(caught.value)


def test_a_missing_toml_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_config(str(tmp_path / "none.toml"))


@given(
    st.builds(
        Options,
        endpoint_url=st.none() | st.just("https://host:1/x"),
        region=st.none() | words,
        anonymous=st.booleans(),
        cache_size=sizes,
        min_free=sizes,
        metadata_ttl=times,
        uid=st.none() | st.integers(0, 0xFFFF_FFFE),
        file_mode=st.none() | st.integers(0, 0o777),
        allow_other=st.booleans(),
        log_level=st.sampled_from(["debug", "info", "warning", "error"]),
    ),
    st.binary(min_size=1).filter(lambda name: b"\0" not in name).map(os.fsdecode),
)
def test_the_daemon_reads_the_configuration_it_was_given(chosen: Options, name: str) -> None:
    config = MountConfig("s3://" + name, "/" + name, chosen)
    text = config.to_json()
    assert "\n" not in text
    assert MountConfig.from_json(text) == config


def test_the_help_table_has_every_option_with_its_default() -> None:
    table = describe()
    assert all(f"{name}=" in table for name in Options.__slots__)
    assert "[80%]" in table and "[5m]" in table
    assert max(map(len, table.splitlines())) <= 110
