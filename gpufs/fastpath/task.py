"""What the supervisor tells the fast path process to do."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Task:
    """`config` is a MountConfig as JSON; the rest are open descriptors by number, -1 for none yet.

    `resumed`: the mount is older than this process, INIT was agreed by a predecessor.
    """

    config: str
    device_fd: int
    pair_fd: int
    feed_fd: int
    table_fd: int
    resumed: bool
    filesystem_pid: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        return cls(**json.loads(text))
