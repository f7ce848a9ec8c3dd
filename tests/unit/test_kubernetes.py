"""The manifests in docs/kubernetes: valid for the Kubernetes API, and true to what gpufs itself has."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from gpufs.options import parse_options

DIRECTORY = Path(__file__).parents[2] / "docs" / "kubernetes"
DOCUMENTS = [
    document for file in sorted(DIRECTORY.glob("*.yaml")) for document in yaml.safe_load_all(file.read_text())
]
VERSIONS = "1.30", "1.37"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document["kind"])
def test_the_manifests_are_valid(document: dict, version: str) -> None:
    kubernetes_validate.validate(document, version, strict=True)


def of(kind: str) -> dict:
    (document,) = [document for document in DOCUMENTS if document["kind"] == kind]
    return document


def test_the_configuration_is_one_that_gpufs_takes() -> None:
    settings = tomllib.loads(of("ConfigMap")["data"]["imagenet.toml"])
    assert settings.pop("source").startswith("s3://")
    mountpoint = settings.pop("mountpoint")
    options, notes = parse_options(settings)
    assert not notes
    pod = of("DaemonSet")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    places = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert str(options.cache_dir) in places
    assert places[str(Path(mountpoint).parent)]["mountPropagation"] == "Bidirectional"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["exec"]["command"] == ["gpufs", "status", mountpoint]


def test_jobs_see_what_the_daemon_mounts() -> None:
    daemon, job = (of(kind)["spec"]["template"]["spec"] for kind in ("DaemonSet", "Job"))
    paths = {volume["hostPath"]["path"] for volume in daemon["volumes"] if "hostPath" in volume}
    (volume,) = job["volumes"]
    assert volume["hostPath"]["path"] in paths
    for container in (*job["containers"], *job["initContainers"]):
        (mount,) = container["volumeMounts"]
        assert mount["mountPropagation"] == "HostToContainer" and mount["readOnly"]


def test_no_secret_is_in_the_files() -> None:
    assert set(of("Secret")["stringData"].values()) == {"replace-me"}
    assert not any(re.search(r"AKIA[A-Z0-9]{16}", path.read_text()) for path in DIRECTORY.iterdir())
