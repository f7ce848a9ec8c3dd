"""Settings of an S3 source, as the user gives them; None means: find out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Addressing = Literal["auto", "path", "virtual"]


@dataclass(frozen=True, slots=True)
class S3Settings:
    """How to reach a bucket. What is None comes from the environment, the AWS profile, or the server."""

    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    addressing: Addressing = "auto"
    anonymous: bool = False
    requester_pays: bool = False
    ca_bundle: Path | None = None
