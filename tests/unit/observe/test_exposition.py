"""What Prometheus is given: both formats are read by its own parsers, and nothing gets lost on the way."""

from __future__ import annotations

import json

import pytest
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.samples import Sample

from gpufs.errors import GpufsError
from gpufs.metrics import GAUGES, Metrics
from gpufs.observe.exposition import Silent, families, render
from gpufs.observe.figures import Figures, Process
from tests.unit.observe.helpers import figures

SOME = figures(
    counters={name: number for number, name in enumerate(Metrics().counters, 1)},
    gauges={name: number for number, name in enumerate(GAUGES, 101)},
    times={"miss_wait": [0.00015, 0.003, 0.003, 500.0]},
    processes=[Process(7, "python3", 1.5, 0.25, 3, 1)],
    source_error="refused",
)


def samples(text: str, *, is_openmetrics: bool) -> dict[str, list[Sample]]:
    """By name, as Prometheus' own parser reads them."""
    parse = openmetrics_parser.text_string_to_metric_families if is_openmetrics else (
        parser.text_string_to_metric_families
    )  # fmt: skip
    found: dict[str, list[Sample]] = {}
    for family in parse(text):
        assert family.documentation and family.type != "unknown", family
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


@pytest.mark.parametrize("is_openmetrics", [False, True])
def test_every_figure_arrives(is_openmetrics: bool) -> None:
    found = samples(render([SOME], openmetrics=is_openmetrics), is_openmetrics=is_openmetrics)
    for family in families():
        if family.type == "counter":
            (sample,) = found[f"{family.name}_total"]
            assert sample.value == SOME.counters[family.figure]
        elif family.type == "gauge":
            (sample,) = found[family.name]
            assert sample.value == SOME.gauges[family.figure]
        else:
            (count,), (total,) = found[f"{family.name}_count"], found[f"{family.name}_sum"]
            assert count.value == SOME.times[family.figure].count
            assert total.value == SOME.times[family.figure].seconds
        assert sample.labels == {"mountpoint": "/data", "source": "s3://bucket"}
    assert found["gpufs_build_info"][0].labels["version"] == "1.0"
    assert [sample.value for sample in found["gpufs_up"]] == [1]


def test_buckets_count_all_up_to_their_bound() -> None:
    found = samples(render([SOME], openmetrics=True), is_openmetrics=True)
    counts = {sample.labels["le"]: sample.value for sample in found["gpufs_miss_wait_seconds_bucket"]}
    assert counts["0.0001"] == 0 and counts["0.0002"] == 1 and counts["0.0016"] == 1
    assert counts["0.0032"] == 3 and counts["104.8576"] == 3 and counts["+Inf"] == 4


@pytest.mark.parametrize("is_openmetrics", [False, True])
def test_several_mounts_and_one_that_is_silent(is_openmetrics: bool) -> None:
    other = figures(mountpoint="/other")
    text = render([SOME, Silent("/hangs", "nfs://host/x"), other], openmetrics=is_openmetrics)
    found = samples(text, is_openmetrics=is_openmetrics)
    up = {sample.labels["mountpoint"]: sample.value for sample in found["gpufs_up"]}
    assert up == {"/data": 1, "/hangs": 0, "/other": 1}
    assert {sample.labels["mountpoint"] for sample in found["gpufs_opens_total"]} == {"/data", "/other"}


@pytest.mark.parametrize("is_openmetrics", [False, True])
@pytest.mark.parametrize("mounts", [[], [Silent("/hangs", "s3://b")]])
def test_a_host_without_a_mount_that_answers(mounts: list[Silent], is_openmetrics: bool) -> None:
    found = samples(render(mounts, openmetrics=is_openmetrics), is_openmetrics=is_openmetrics)
    assert len(found.get("gpufs_up", [])) == len(mounts) and set(found) <= {"gpufs_up"}


@pytest.mark.parametrize("is_openmetrics", [False, True])
def test_names_of_any_bytes_stay_one_label(is_openmetrics: bool) -> None:
    odd = figures(mountpoint='/a "b"\\n\n\udcff}', source="s3://bücket")
    (up,) = samples(render([odd], openmetrics=is_openmetrics), is_openmetrics=is_openmetrics)["gpufs_up"]
    assert up.labels == {"mountpoint": '/a "b"\\n\n\\xff}', "source": "s3://bücket"}


def test_a_daemon_of_another_version_tells_what_it_knows() -> None:
    document = json.loads(json.dumps(SOME.to_json()))
    del document["counters"]["opens"], document["gauges"]["files"], document["times"]["miss_wait"]
    document["counters"]["of_the_future"] = 1
    document["processes"][0]["of_the_future"] = 1
    read = Figures.from_json(document)
    assert read.counters["opens"] == read.gauges["files"] == read.times["miss_wait"].count == 0
    assert read.processes == SOME.processes
    assert samples(render([read], openmetrics=True), is_openmetrics=True)
    del document["when"]
    with pytest.raises(GpufsError, match="gpufs restart"):
        Figures.from_json(document)


def test_figures_come_through_the_control_socket_as_they_were() -> None:
    assert Figures.from_json(json.loads(json.dumps(SOME.to_json()))) == SOME


def test_help_texts_are_sentences_of_one_line() -> None:
    for family in families():
        assert family.help.endswith(".") and "\n" not in family.help, family
        assert not family.help[0].islower(), family


def test_no_two_figures_have_one_name() -> None:
    names = [family.name for family in families()]
    assert len(names) == len(set(names))
    # In OpenMetrics no family may look like a part of another one.
    parts = {f"{family.name}_{part}" for family in families() for part in ("count", "sum", "bucket", "total")}
    assert not parts & set(names)


def test_the_unit_is_the_end_of_the_name() -> None:
    for family in families():
        assert not family.unit or family.name.endswith(f"_{family.unit}"), family
