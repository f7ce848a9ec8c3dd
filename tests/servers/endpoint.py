"""An S3 server as the tests see it: where it is, how to get in, and buckets to fill."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class S3Endpoint:
    """A running S3 server. `flat` is true when it keeps any key, false when it is itself a tree."""

    url: str
    access_key: str
    secret_key: str
    region: str
    flat: bool

    def env(self) -> dict[str, str]:
        """The environment that lets a client in (and keeps this host's own AWS settings out)."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/nonexistent",
            "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
        }

    def client(self, url: str | None = None) -> Any:
        """A boto3 client with its own retries on, for putting test data in place."""
        return _client(url or self.url, self.access_key, self.secret_key, self.region)

    def put(self, bucket: str, objects: Mapping[str, bytes], **extra: Any) -> dict[str, str]:
        """Store `objects` (key -> body), 8 at a time; returns key -> ETag without quotes."""
        client = self.client()

        def one(item: tuple[str, bytes]) -> tuple[str, str]:
            key, body = item
            return key, client.put_object(Bucket=bucket, Key=key, Body=body, **extra)["ETag"].strip('"')

        if len(objects) == 1:
            return dict(map(one, objects.items()))
        with ThreadPoolExecutor(8) as pool:
            return dict(pool.map(one, objects.items()))

    def empty_and_delete(self, bucket: str) -> None:
        client = self.client()
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
            keys = [{"Key": item["Key"]} for item in page.get("Contents", [])]
            if keys:
                client.delete_objects(Bucket=bucket, Delete={"Objects": keys, "Quiet": True})
        client.delete_bucket(Bucket=bucket)


@functools.lru_cache(maxsize=16)  # making a boto3 client costs ~100 ms
def _client(url: str, access_key: str, secret_key: str, region: str) -> Any:
    import boto3
    from botocore.config import Config

    return boto3.session.Session().client(
        "s3",
        endpoint_url=url,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        region_name=region,
        config=Config(
            s3={"addressing_style": "path"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            max_pool_connections=16,
        ),
    )
