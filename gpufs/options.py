"""The options of a mount: their names, types, defaults and meaning, and how their text is read.

One text form serves `-o key=value,...`, fstab, the TOML file and the document handed to the daemon.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from gpufs.errors import UsageError

# Text by key; None for a flag that came without a value.
Settings = dict[str, str | None]

# Words of mount(8) and fstab that say nothing to gpufs: mount(8) acts on them itself, or they ask
# for what is so anyway (the tree is read-only, without set-uid programs and devices), or for what no
# FUSE filesystem here can do and nobody is worse off without (noexec).
_MOUNT_WORDS = frozenset(
    {"_netdev", "nofail", "auto", "noauto", "user", "nouser", "users", "owner", "group", "defaults"}
    | {"ro", "rw", "async", "sync", "relatime", "noatime", "nodiratime", "lazytime", "nosuid", "nodev"}
    | {"exec", "noexec", "silent", "loud"}  # noexec comes with user, users, owner and group
)
_MOUNT_PREFIXES = ("x-", "X-", "comment=")
# Accepted, because fstab lines have them, but not obeyed: the user is told.
_DISREGARDED_WORDS = frozenset({"suid", "dev"})


@dataclass(frozen=True, slots=True)
class Size:
    """An amount of disk space: bytes, or percent of the disk. Exactly one of the two is set."""

    bytes: int | None = None
    percent: float | None = None

    def __post_init__(self) -> None:
        if (self.bytes is None) == (self.percent is None):
            raise ValueError("a Size is either bytes or percent")

    def in_bytes(self, disk: int) -> int:
        """Of a disk of so many bytes."""
        return int(disk * self.percent / 100) if self.percent is not None else self.bytes or 0


_LETTERS = "KMGTP"
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_NUMBER_AND_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(\S*)")
_SIZE_FORM = "800GiB, 1.5TB, 500M, 80% or plain bytes"
_LEAST_RATE = 64 << 10  # bytes a second
_TIME_FORM = "30s, 5m, 1h, 7d or forever"


def parse_size(text: str) -> Size:
    """`800GiB`, `500M` (powers of 1024), `1.5TB` (of 1000), `80%`, `12345`. ValueError otherwise."""
    match = _NUMBER_AND_UNIT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size; write {_SIZE_FORM}")
    number, unit = match.groups()
    if unit == "%":
        if float(number) > 100:
            raise ValueError(f"{text!r} is more than the whole disk; write at most 100%")
        return Size(percent=float(number))
    form = re.fullmatch(rf"([{_LETTERS}])?(I?B)?", unit.upper())
    if form is None or unit.upper() == "IB":
        letter = unit[0].upper()
        near = f"{number}{letter if letter in _LETTERS else 'G'}iB"
        raise ValueError(f"{text!r} is not a size (sizes: {_SIZE_FORM}){_hint(near)}")
    power = _LETTERS.index(form[1]) + 1 if form[1] else 0
    return Size(bytes=int(Decimal(number) * (1000 if form[2] == "B" else 1024) ** power))


def format_size(size: Size) -> str:
    """Short text that parse_size() reads back as the same value."""
    if size.percent is not None:
        return f"{_plain(size.percent)}%"
    amount = size.bytes or 0
    for power in range(len(_LETTERS), 0, -1):
        if amount and amount % 1024**power == 0:
            return f"{amount // 1024**power}{_LETTERS[power - 1]}iB"
    return str(amount)


def parse_time(text: str) -> float:
    """Seconds of `5m`, `30s`, `1.5h`, `7d`, `250ms` or plain seconds; math.inf for `forever`."""
    if text.strip() == "forever":
        return math.inf
    match = _NUMBER_AND_UNIT.fullmatch(text.strip())
    if match is None:
        near = "forever" if text in ("inf", "infinity", "never", "infinite") else _nearest(text, ["forever"])
        raise ValueError(f"{text!r} is not a time (times: {_TIME_FORM}){_hint(near)}")
    number, unit = match.groups()
    if (unit or "s") not in _SECONDS:
        letter = unit[0].lower()
        near = number + letter if letter in _SECONDS else None
        raise ValueError(f"{text!r} is not a time (times: {_TIME_FORM}){_hint(near)}")
    return float(number) * _SECONDS[unit or "s"]


def format_time(seconds: float) -> str:
    """Short text that parse_time() reads back as the same value."""
    if math.isinf(seconds):
        return "forever"
    for unit in ("d", "h", "m"):
        count = seconds // _SECONDS[unit]
        if count and count * _SECONDS[unit] == seconds:
            return f"{_plain(count)}{unit}"
    return f"{_plain(seconds)}s"


def _plain(number: float) -> str:
    """The exact decimal digits of a float, without an exponent or a needless `.0`."""
    text = format(Decimal(repr(float(number))), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _nearest(word: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(word, list(known), n=1)), None)


def _hint(near: str | None) -> str:
    return f"; did you mean {near!r}?" if near else ""


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one kind of value is read from text (ValueError says what is wrong) and written as text."""

    form: str
    parse: Callable[[str], Any]
    render: Callable[[Any], str] = str


def _parse_flag(text: str) -> bool:
    if text in ("true", "yes", "on", "1"):
        return True
    if text in ("false", "no", "off", "0"):
        return False
    raise ValueError(f"{text!r} is neither true nor false")


def _parse_id(text: str) -> int:
    # 2**32 - 1 means "no change" to chown(2) and cannot own a file.
    if not re.fullmatch(r"[0-9]{1,10}", text) or int(text) >= 0xFFFF_FFFF:
        raise ValueError(f"{text!r} is not a numeric id such as 1000")
    return int(text)


def _parse_port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 0 < int(text) < 65536:
        raise ValueError(f"{text!r} is not a port such as 20048")
    return int(text)


def _parse_mode(text: str) -> int:
    if not re.fullmatch(r"(0o)?[0-7]{3,4}", text) or int(text, 8) > 0o777:
        raise ValueError(f"{text!r} is not an octal mode such as 0444")
    return int(text, 8)


def _parse_url(text: str) -> str:
    if not re.match(r"https?://[^/\s]", text):
        raise ValueError(f"{text!r} is not an address such as https://host or http://host:9000")
    return text


def _parse_store(text: str) -> str:
    if not text.startswith("s3://") or "@" in text:  # not repeated: there may be a password in it
        raise ValueError("write s3://bucket[/prefix], without credentials; any server of S3 will do")
    return text


def _parse_rate(text: str) -> int:
    size = parse_size(text).bytes
    if size is None:
        raise ValueError(f"{text!r} is not an amount per second such as 100MiB or 1.5G")
    if size < _LEAST_RATE:  # less is a forgotten unit, and readers would seem to hang
        raise ValueError(f"{text!r} is less than 64KiB a second; write 100M for 100 MiB a second")
    return size


def _choice(*words: str) -> _Kind:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is not one of {', '.join(words)}{_hint(_nearest(text, words))}")
        return text

    return _Kind("|".join(words), parse)


_FLAG = _Kind("true|false", _parse_flag, lambda value: "true" if value else "false")
_TEXT = _Kind("NAME", str)
_PATH = _Kind("PATH", lambda text: Path(os.path.abspath(os.path.expanduser(text))))
_PLACE = _Kind("FILE|URL", lambda text: text if "://" in text else os.path.abspath(os.path.expanduser(text)))
_ADDRESS = _Kind("URL", _parse_url)
_STORE = _Kind("URL", _parse_store)
_SIZE = _Kind("SIZE", parse_size, format_size)
_RATE = _Kind("SIZE", _parse_rate, lambda value: format_size(Size(bytes=value)))
_TIME = _Kind("TIME", parse_time, format_time)
_ID = _Kind("NUMBER", _parse_id)
_PORT = _Kind("PORT", _parse_port)
_MODE = _Kind("OCTAL", _parse_mode, "{:04o}".format)


def _option(kind: _Kind, meaning: str, **default: Any) -> Any:
    return field(metadata={"kind": kind, "meaning": meaning}, **default)


def _default_cache_dir() -> Path:
    if os.geteuid() == 0:
        return Path("/var/cache/gpufs")
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base if os.path.isabs(base) else os.path.expanduser("~/.cache"), "gpufs")


def _am_root() -> bool:
    return os.geteuid() == 0


Policy = Literal["epoch", "lru"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user chose for one mount; None means "as the source has it" or "find out"."""

    endpoint_url: str | None = _option(
        _ADDRESS,
        "address of a server of S3, gs or az; default: the cloud's own, or what its files say",
        default=None,
    )
    region: str | None = _option(_TEXT, "region of the bucket; default: found out", default=None)
    profile: str | None = _option(_TEXT, "profile of the AWS configuration files", default=None)
    addressing: Literal["auto", "path", "virtual"] = _option(
        _choice("auto", "path", "virtual"), "how the bucket is named in requests", default="auto"
    )
    anonymous: bool = _option(_FLAG, "send unsigned requests (public buckets)", default=False)
    requester_pays: bool = _option(_FLAG, "agree to pay for the requests", default=False)
    ca_bundle: Path | None = _option(
        _PATH, "PEM file with the certificates to trust; default: the system's", default=None
    )
    nfs_uid: int | None = _option(_ID, "user that NFS requests are made for; default: you", default=None)
    nfs_gid: int | None = _option(_ID, "group that NFS requests are made for; default: yours", default=None)
    nfs_mount_port: int | None = _option(
        _PORT, "port of the NFS server's MOUNT service; default: its port mapper is asked", default=None
    )
    cache_dir: Path = _option(
        _PATH, "where objects and the index are kept", default_factory=_default_cache_dir
    )
    cache_size: Size = _option(_SIZE, "most space the cache may take", default=Size(percent=80.0))
    min_free: Size = _option(_SIZE, "space of the cache's disk to leave free", default=Size(percent=5.0))
    shared_cache: str | None = _option(
        _STORE, "second cache that several hosts share, s3://bucket[/prefix]; default: none", default=None
    )
    shared_cache_endpoint_url: str | None = _option(
        _ADDRESS, "address of its server; default: AWS, or what the AWS files say", default=None
    )
    shared_cache_profile: str | None = _option(
        _TEXT, "profile of the AWS configuration files for it", default=None
    )
    policy: Policy = _option(
        _choice("epoch", "lru"),
        "what makes room in a full cache: what no epoch needs, or the least recently used",
        default="epoch",
    )
    bandwidth_limit: int | None = _option(
        _RATE, "most bytes a second to fetch, say 100M; default: no limit", default=None
    )
    metadata_ttl: float = _option(
        _TIME, "how long a listing is believed; forever for a dataset that never changes", default=300.0
    )
    index_from: str | None = _option(
        _PLACE,
        "list of all objects to begin with, in place of a listing: an S3 Inventory's manifest.json, or "
        "key,size,etag,mtime as CSV; a path or an s3:// URL",
        default=None,
    )
    uid: int | None = _option(_ID, "owner of everything; default: the source's, else you", default=None)
    gid: int | None = _option(_ID, "group of everything; default: the source's, else yours", default=None)
    file_mode: int | None = _option(_MODE, "mode of files; default: the source's, else 0444", default=None)
    dir_mode: int | None = _option(
        _MODE, "mode of directories; default: the source's, else 0555", default=None
    )
    allow_other: bool = _option(
        _FLAG, "let other users see the tree; default: true for root", default_factory=_am_root
    )
    fast_path: Literal["auto", "off"] = _option(
        _choice("auto", "off"), "answer what is cached in a process of its own, if possible", default="auto"
    )
    compress: Literal["auto", "off"] = _option(
        _choice("auto", "off"), "keep small files compressed where that saves a third", default="off"
    )
    log_level: str = _option(
        _choice("debug", "info", "warning", "error"), "least severe message to log", default="info"
    )
    log_format: Literal["text", "json"] = _option(
        _choice("text", "json"), "lines of key=value, or JSON objects", default="text"
    )


def _known() -> dict[str, tuple[Field[Any], _Kind]]:
    return {f.name: (f, f.metadata["kind"]) for f in fields(Options)}


def split_options(text: str) -> Settings:
    r"""The settings of one `-o` argument: `a=b,c` with `\,` for a comma and `\\` for a backslash."""
    settings: Settings = {}
    for word in re.findall(r"(?:\\[,\\]|[^,])+", text):
        key, equals, value = re.sub(r"\\([,\\])", r"\1", word).partition("=")
        settings[key.strip()] = value if equals else None
    return settings


def read_config(path: str) -> Settings:
    """The settings of a TOML file: the same keys at its top level, `source` and `mountpoint` too."""
    import tomllib

    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise UsageError(f"cannot read the configuration file {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"the configuration file {path} is not valid TOML: {error}") from error
    return {key: _toml_text(path, key, value) for key, value in document.items()}


def _toml_text(path: str, key: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if key in ("file_mode", "dir_mode") and not isinstance(value, str):
        raise UsageError(f'{path}: write the mode as a string: {key} = "0444"')
    if isinstance(value, str | int | float):
        return str(value)
    raise UsageError(f"{path}: {key} is a {type(value).__name__}; it must be one string, number or flag")


def parse_options(settings: Mapping[str, str | None], *, sloppy: bool = False) -> tuple[Options, list[str]]:
    """Typed options, and notes for the user about words that have no effect.

    Raises UsageError, which names the key, what it accepts and the nearest right word. With
    `sloppy` unknown keys become notes (the -s of mount(8)).
    """
    known = _known()
    values: dict[str, Any] = {}
    notes: list[str] = []
    for key, text in settings.items():
        if key in _MOUNT_WORDS or f"{key}=".startswith(_MOUNT_PREFIXES) or not key:
            continue
        if key in _DISREGARDED_WORDS:
            notes.append(f"option {key!r} has no effect")
        elif key in known:
            values[key] = _parse_value(key, known[key][1], text)
        elif sloppy:
            notes.append(f"unknown option {key!r} is disregarded")
        else:
            near = _nearest(key, known)
            more = _hint(near) or f"; known are {', '.join(known)}"
            raise UsageError(f"unknown option {key!r}{more}")
    return Options(**values), notes


def _parse_value(key: str, kind: _Kind, text: str | None) -> Any:
    if text is None and kind is _FLAG:
        return True
    if not text:
        raise UsageError(f"option {key!r} needs a value: {key}={kind.form}")
    try:
        return kind.parse(text)
    except ValueError as error:
        raise UsageError(f"option {key!r}: {error}") from error


def describe() -> str:
    """The table of all options, for --help."""
    lines = []
    for name, (f, kind) in _known().items():
        default = f.default_factory() if callable(f.default_factory) else f.default
        shown = "" if default is None or "default:" in f.metadata["meaning"] else f" [{kind.render(default)}]"
        head = f"  {name}={kind.form}"
        text = textwrap.wrap(f.metadata["meaning"] + shown, 62)
        if len(head) > 34:
            lines.append(head)
            head = ""
        lines += [f"{left:<36}{right}" for left, right in zip([head] + [""] * len(text), text, strict=False)]
    lines.append(f"  SIZE: {_SIZE_FORM}. TIME: {_TIME_FORM}.")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class MountConfig:
    """One mount: what, where and how. `mountpoint` is absolute and free of symbolic links."""

    source: str
    mountpoint: str
    options: Options

    def to_json(self) -> str:
        """One line that from_json() reads back as an equal value, in any process of this user."""
        values = {name: getattr(self.options, name) for name in _known()}
        texts = {n: _known()[n][1].render(v) for n, v in values.items() if v is not None}
        return json.dumps({"source": self.source, "mountpoint": self.mountpoint, "options": texts})

    @classmethod
    def from_json(cls, text: str) -> MountConfig:
        document = json.loads(text)
        options, _ = parse_options(document["options"])
        return cls(document["source"], document["mountpoint"], options)
