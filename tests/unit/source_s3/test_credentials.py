"""Credentials: found by the whole chain, renewed when refused, and never shown."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from gpufs.errors import AccessDenied
from gpufs.source.s3.credentials import Credentials, Secret
from gpufs.source.s3.location import open_session
from gpufs.source.s3.settings import S3Settings

Write = Callable[[str, str, str], None]


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a profile with a key, a secret and a token into the only credentials file there is."""
    import os

    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    path = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    def write(key: str, secret: str, token: str) -> None:
        path.write_text(
            f"[train]\naws_access_key_id={key}\naws_secret_access_key={secret}\naws_session_token={token}\n"
        )

    return write


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def made(clock: Clock | None = None, name: str = "train") -> Credentials:
    return Credentials(lambda: open_session(S3Settings(profile=name)), clock or Clock())


def test_a_rotated_profile_file_is_picked_up_after_a_refusal(profile: Write) -> None:
    """Case 17."""
    profile("K1", "S1", "T1")
    credentials = made()
    assert credentials.current() == Secret("K1", "S1", "T1")
    profile("K2", "S2", "T2")
    assert credentials.current() == Secret("K1", "S1", "T1")
    assert credentials.renew(credentials.generation)
    assert credentials.current() == Secret("K2", "S2", "T2")
    assert credentials.for_obstore()["access_key_id"] == "K2"


def test_there_is_one_look_up_every_few_seconds(profile: Write) -> None:
    profile("K1", "S1", "T1")
    clock = Clock()
    credentials = made(clock)
    credentials.current()
    assert not credentials.renew(0)  # nothing new in the file yet
    profile("K2", "S2", "T2")
    clock.now = 2.9
    assert not credentials.renew(0)
    clock.now = 3.0
    assert credentials.renew(0)


def test_who_was_refused_with_older_ones_need_not_look_up_again(profile: Write) -> None:
    profile("K1", "S1", "T1")
    credentials = made()
    credentials.current()
    profile("K2", "S2", "T2")
    assert credentials.renew(0)
    assert credentials.renew(0)
    assert credentials.generation == 1


def test_a_file_that_is_broken_for_a_moment_keeps_the_old_ones(
    profile: Write, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    profile("K1", "S1", "T1")
    credentials = made()
    credentials.current()
    (tmp_path / "credentials").write_text("[trai")
    with caplog.at_level(logging.WARNING):
        assert not credentials.renew(0)
    assert "no others could be found" in caplog.text
    assert credentials.current() == Secret("K1", "S1", "T1")


class Role:
    """A role taken on with keys that may be out of date: what botocore's refreshable credentials do."""

    def __init__(self, works: bool) -> None:
        self.works = works

    def get_credentials(self) -> Role:
        return self

    def get_frozen_credentials(self) -> object:
        from botocore.credentials import ReadOnlyCredentials
        from botocore.exceptions import ClientError

        if not self.works:
            raise ClientError({"Error": {"Code": "ExpiredToken", "Message": "expired"}}, "AssumeRole")
        return ReadOnlyCredentials("K", "S", "T")


def test_a_role_that_cannot_be_refreshed_is_looked_up_anew() -> None:
    roles = [Role(True), Role(False), Role(True)]
    clock = Clock()
    credentials = Credentials(lambda: roles.pop(0), clock)
    first = roles[0]
    assert credentials.current() == Secret("K", "S", "T")
    first.works = False
    with pytest.raises(AccessDenied, match="cannot be refreshed"):
        credentials.current()
    clock.now = 1.0
    with pytest.raises(AccessDenied):
        credentials.current()
    assert len(roles) == 1
    clock.now = 4.0
    assert credentials.current() == Secret("K", "S", "T")


def test_no_credentials_at_all_is_said_with_what_to_do(profile: Write) -> None:
    credentials = Credentials(lambda: open_session(S3Settings()))
    with pytest.raises(AccessDenied, match=r"AWS_PROFILE.*anonymous"):
        credentials.current()


def test_a_credential_process_is_asked(profile: Write, tmp_path: Path) -> None:
    answer = '{"Version":1,"AccessKeyId":"PK","SecretAccessKey":"PS","SessionToken":"PT"}'
    (tmp_path / "answer.json").write_text(answer)
    (tmp_path / "config").write_text(f"[profile proc]\ncredential_process = cat {tmp_path}/answer.json\n")
    assert made(name="proc").current() == Secret("PK", "PS", "PT")


def test_temporary_credentials_are_asked_for_again_static_ones_are_not(profile: Write) -> None:
    profile("K1", "S1", "T1")
    assert made().for_obstore()["expires_at"] is not None
    profile("K1", "S1", "")
    assert made().for_obstore()["expires_at"] is None


def test_no_secret_in_repr_or_log(profile: Write, caplog: pytest.LogCaptureFixture) -> None:
    profile("KEYKEY", "SECRETSECRET", "TOKENTOKEN")
    credentials = made()
    shown = repr(credentials.current()) + repr(credentials) + repr(vars(credentials))
    credentials.renew(0)
    for secret in ("KEYKEY", "SECRETSECRET", "TOKENTOKEN"):
        assert secret not in shown + caplog.text
