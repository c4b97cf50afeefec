"""`kubectl llmd` against a real API server, with the operator's process behind it. Pods and their logs are played."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx2
import pytest
from lightkube.generic_resource import GenericNamespacedResource, create_api_info

from operator_process import GROUP, operator_process
from operator_stage import ONE_STEP, Stage
from played_kubelet import played_kubelet
from quire_operator.cluster import Cluster
from quire_operator.errors import PluginError
from quire_operator.labels import API_VERSION, KIND
from quire_operator.plugin import follow as following
from quire_operator.plugin.chat import Piece, Talk, connect
from quire_operator.plugin.cli import main
from quire_operator.plugin.config import Flags
from quire_operator.plugin.failures import NO_KIND, explain
from quire_operator.plugin.follow import Stream, streams_of
from quire_operator.plugin.reach import Reach
from real_api import OPERATOR, RealApi
from server_process import process

pytestmark = pytest.mark.timeout(3600)  # the programs are built where they are not there yet

Run = Callable[..., tuple[int, str, str]]
"""Words of a command line to exit status, standard output and standard error."""


@pytest.fixture
def stage(api: RealApi, tmp_path: Path) -> Iterator[Stage]:
    with operator_process(api, tmp_path) as bench:
        yield Stage(bench)


@pytest.fixture
def config(api: RealApi, tmp_path: Path) -> Path:
    path = tmp_path / "person"
    path.write_text(json.dumps(api.kubeconfig()))
    return path


@pytest.fixture
def llmd(stage: Stage, config: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([*words, "--kubeconfig", str(config), "-n", stage.bench.namespace])
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, said.out, said.err

    return run


def test_a_rollout_is_paused_resumed_aborted_tried_again_and_promoted(stage: Stage, llmd: Run) -> None:
    old = stage.create(ONE_STEP)
    assert llmd("rollout", "abort", "smol")[0] == 1
    status, _, err = llmd("rollout", "promote", "smol")
    assert status == 1 and "there is no candidate to promote" in err
    assert "quire.dev/rollout" not in stage.body()["metadata"].get("annotations", {}), "what is refused is not sent"

    assert llmd("rollout", "pause", "llmd/smol") == (0, "smol paused: the next edit waits until resume\n", "")
    stage.edit(engine={"maxNumSeqs": 4})
    stage.until("the pause", lambda: stage.reason("Progressing") == "Paused")
    status, out, _ = llmd("status", "smol")
    assert status == 3 and ", paused" in out
    status, out, _ = llmd("rollout", "resume", "smol")
    assert status == 0 and out.startswith("smol goes on: revision ")
    stage.until("the step", lambda: stage.reason("Progressing") == "StepPaused")

    new = str(stage.status()["updatedRevision"])
    status, out, _ = llmd("status", "smol")
    assert status == 3 and f"Canary to {new}, step 1 of 1" in out and "40 %" in out and "1 of 2 ready" in out
    status, out, _ = llmd("rollout", "history", "smol")
    lines = out.splitlines()
    assert status == 0 and lines[1].startswith(new) and "candidate" in lines[1] and "--max-num-seqs" in out
    assert lines[-1].startswith(old) and "stable" in lines[-1]

    status, out, _ = llmd("rollout", "abort", "smol")
    assert status == 0 and out.startswith("smol aborted: ")
    assert "aborted already" in llmd("rollout", "abort", "smol")[2]
    assert stage.status()["control"]["aborted"] == new
    assert llmd("rollout", "retry", "smol")[0] == 0
    stage.until("the step again", lambda: stage.reason("Progressing") == "StepPaused")
    assert llmd("rollout", "promote", "smol")[0] == 0
    stage.until("the end", lambda: stage.status().get("currentRevision") == new and "rollout" not in stage.status())


def test_status_scale_and_what_is_not_there(stage: Stage, llmd: Run) -> None:
    status, out, err = llmd("status")
    assert (status, out) == (0, "") and "no LLMDeployment in namespace" in err
    stage.create({"drainTimeout": "0s"})
    assert llmd("scale", "smol", "--replicas", "3")[0] == 0
    assert stage.body()["spec"]["replicas"] == 3
    assert "3 replicas already" in llmd("scale", "smol", "--replicas=3")[1]
    stage.until("three", lambda: stage.status()["readyReplicas"] == 3 and stage.reason("Progressing") == "Complete")

    status, out, _ = llmd("status", "smol", "-o", "json")
    told = json.loads(out)
    assert status == 3, "no completion went through a router"
    assert told["summary"] == "3/3" and [pod["ready"] for pod in told["pods"]] == [True] * 3
    assert told["conditions"][0]["type"] == "Ready" and told["rollout"] is None
    status, out, _ = llmd("status")
    assert status == 3 and out.splitlines()[0].split()[:2] == ["NAME", "PHASE"] and "3/3" in out

    status, _, err = llmd("status", "smoll")
    assert status == 1 and "did you mean smol?" in err
    spec = {"model": {"source": "file:///m"}, "autoscaling": {"maxReplicas": 2, "targets": {"queueSize": "4"}}}
    stage.bench.create("LLMDeployment", "llmdeployments", "scaled", spec)
    status, _, err = llmd("scale", "scaled", "--replicas=2")
    assert status == 1 and "spec.autoscaling owns the replicas" in err
    assert llmd("logs", "scaled")[2].startswith("kubectl llmd: error: no logs of scaled: it has no pods")


def test_without_rights_and_without_an_operator(
    api: RealApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    namespace = api.namespace()
    body = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "smol"},
        "spec": {"model": {"source": "file:///m"}},
    }
    created = api.create(f"{GROUP}/namespaces/{namespace}/llmdeployments", body, dry_run=False)
    assert created.status_code == 201, created.text
    person, stranger = tmp_path / "person", tmp_path / "stranger"
    person.write_text(json.dumps(api.kubeconfig()))
    stranger.write_text(json.dumps(api.kubeconfig(OPERATOR)))

    def err(file: Path, *words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main([*words, f"--kubeconfig={file}", f"--namespace={namespace}"])
        assert ended.value.code == 1
        return capsys.readouterr().err

    assert "you may not do that" in err(stranger, "status")
    late = err(person, "rollout", "pause", "smol", "--timeout", "0")
    assert "after 0 s the operator has not carried it out" in late
    assert "the command pause before it is not carried out yet" in err(person, "rollout", "resume", "smol")
    assert "smol has no address yet" in err(person, "chat", "smol", "Hi")
    assert "smol has no revision yet" in err(person, "rollout", "history", "smol")


@pytest.mark.parametrize("group", ["nobody.dev", "quire.dev"])
async def test_a_kind_that_is_not_installed_is_told(real_cluster: Cluster, group: str) -> None:
    class Nothing(GenericNamespacedResource):
        _api_info = create_api_info(group, "v1alpha1", "Nothing", "nothings")

    with pytest.raises(httpx2.HTTPStatusError) as refused:
        await real_cluster.list_all(["default"], Nothing)
    assert explain(refused.value) == NO_KIND


def test_logs_come_from_the_container_that_matters(
    api: RealApi, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = api.namespace()
    node = f"node-{namespace}"
    own = f"{GROUP}/namespaces/{namespace}/llmdeployments"
    body = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "smol"},
        "spec": {"model": {"source": "file:///m"}},
    }
    assert api.create(own, body, dry_run=False).status_code == 201
    person = tmp_path / "person"
    person.write_text(json.dumps(api.kubeconfig()))
    running, waiting = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, {"waiting": {"reason": "PodInitializing"}}
    ended = {"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:00:00Z", "containerID": "c://1"}}

    def container(name: str, state: object, **more: object) -> dict[str, object]:
        return {"name": name, "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": state, **more}

    def pod(name: str, revision: str, first: object, engine: object, **more: object) -> None:
        spec = {
            "nodeName": node,
            "initContainers": [{"name": "fetch", "image": "x"}],
            "containers": [{"name": "engine", "image": "x"}],
        }
        marks = {"quire.dev/deployment": "smol", "quire.dev/revision": revision}
        path = f"/api/v1/namespaces/{namespace}/pods"
        made = api.create(path, {"metadata": {"name": name, "labels": marks}, "spec": spec}, dry_run=False)
        assert made.status_code == 201, made.text
        statuses = {
            "initContainerStatuses": [container("fetch", first)],
            "containerStatuses": [container("engine", engine, **more)],
        }
        api.patch(f"{path}/{name}/status", {"status": {"phase": "Running", **statuses}})

    def llmd(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["logs", "smol", *words, f"--kubeconfig={person}", f"--namespace={namespace}"])
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, said.out, said.err

    done = {"terminated": {"exitCode": 0, "finishedAt": "2026-01-01T00:00:00Z"}}
    with played_kubelet(api, tmp_path, node) as kubelet:
        kubelet.logs = {f"{namespace}/p-1/engine": ["one", "[two] :smile:"], f"{namespace}/p-2/fetch": ["40 %"]}
        pod("p-1", "abc", done, running, lastState=ended)
        pod("p-2", "def", running, waiting)
        assert llmd() == (0, "p-1 engine | one\np-1 engine | [two] :smile:\np-2 fetch | 40 %\n", "")
        assert llmd("--revision", "def")[1] == "p-2 fetch | 40 %\n"
        assert llmd("--tail", "1", "--revision", "abc")[1] == "p-1 engine | [two] :smile:\n"
        kubelet.asked.clear()
        assert llmd("--previous")[0] == 0
        [(what, query)] = kubelet.asked
        assert what == f"{namespace}/p-1/engine" and query["previous"] == "true"

        written: list[str] = []
        rounds = itertools.count(1)
        late = kubelet.logs.pop(f"{namespace}/p-2/fetch")

        def look() -> tuple[Stream, ...]:
            assert next(rounds) < 500
            if len(written) == 2:
                kubelet.logs[f"{namespace}/p-2/fetch"] = late  # it could not be read before
            if len(written) > 2:
                raise KeyboardInterrupt
            return streams_of(reach.pods("smol"))

        monkeypatch.setattr(following, "LOOK_S", 0.05)
        with closing(Reach(Flags(namespace, None, str(person)))) as reach, pytest.raises(KeyboardInterrupt):
            following.follow(reach, look, lambda stream, line: written.append(f"{stream.pod} {line}"), tail=None)
        assert written == ["p-1 one", "p-1 [two] :smile:", "p-2 40 %"]

        def gone(stream: Stream, line: str) -> None:
            raise BrokenPipeError

        with closing(Reach(Flags(namespace, None, str(person)))) as reach, pytest.raises(BrokenPipeError):
            following.follow(reach, lambda: streams_of(reach.pods("smol")), gone, tail=None)

        kubelet.logs.clear()
        status, _, err = llmd("--revision", "def")
        assert status == 1 and "p-2" in err and "helm" not in err
        status, _, err = llmd("--revision", "none")
        assert status == 1 and "no logs of revision none of smol: it has no pods" in err


async def test_a_chat_streams_and_an_interrupt_ends_the_answer_alone(tmp_path: Path) -> None:
    async with process(tmp_path, "long") as server:
        await server.line("curl")
        models = (await server.http.get("/v1/models")).json()["data"]

        def talk() -> None:
            with connect(f"http://127.0.0.1:{server.port}", None) as client:
                talked = Talk(client, models[0]["id"], {"max_tokens": 2000})
                seen: list[Piece] = []

                def stop(piece: Piece) -> None:
                    seen.append(piece)
                    if len(seen) == 3:
                        raise KeyboardInterrupt

                assert talked.ask("Hi", stop) is False
                assert [message["role"] for message in talked.messages] == ["user", "assistant"]
                talked.sampling = {"max_tokens": 8}
                seen.clear()
                assert talked.ask("And?", seen.append) is True
                assert len(seen) > 2 and talked.messages[-1]["content"] == "".join(piece.text for piece in seen)
                talked.model = "no-such-model"
                with pytest.raises(PluginError, match=r"answered 404: .*no-such-model"):
                    talked.ask("Hello?", seen.append)
                assert len(talked.messages) == 4, "a question without an answer is not part of the talk"

        await asyncio.to_thread(talk)
