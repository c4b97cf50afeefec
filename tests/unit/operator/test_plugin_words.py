"""`kubectl llmd`: kubeconfig, sentences of failure, the way to the router, the stream of an answer, completion."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest
import yaml
from lightkube.core.exceptions import ApiError, ConfigError
from typer.main import get_command

from quire_operator.errors import PluginError
from quire_operator.plugin.chat import Piece, pieces, refusal
from quire_operator.plugin.cli import main
from quire_operator.plugin.commands import app
from quire_operator.plugin.complete import FILES, NO_FILES, completions
from quire_operator.plugin.config import Flags, choose
from quire_operator.plugin.failures import NO_KIND, explain, not_found
from quire_operator.plugin.forward import Target, target_of
from quire_operator.plugin.reach import is_loopback


def kubeconfig(folder: Path, name: str, *, current: str | None = None, namespace: str | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    context = {"cluster": name, "user": name} | ({"namespace": namespace} if namespace else {})
    content = {
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}", "certificate-authority": "ca.crt"}}],
        "users": [{"name": name, "user": {"token": name}}],
        "contexts": [{"name": name, "context": context}],
        **({"current-context": current} if current else {}),
    }
    (folder / name).write_text(yaml.safe_dump(content))
    return folder / name


def test_several_kubeconfigs_are_one(tmp_path: Path) -> None:
    one = kubeconfig(tmp_path / "a", "one", current="one", namespace="demo")
    two = kubeconfig(tmp_path / "b", "two", current="two")
    environ = {"KUBECONFIG": f"{tmp_path / 'none'}:{one}:{two}"}
    chosen = choose(Flags(), environ)
    assert (chosen.cluster.server, chosen.namespace) == ("https://one", "demo"), "the first current context wins"
    assert chosen.cluster.certificate_auth == str(tmp_path / "a" / "ca.crt")
    other = choose(Flags(context="two"), environ)
    assert other.cluster.server == "https://two" and other.cluster.certificate_auth == str(tmp_path / "b" / "ca.crt")
    again = kubeconfig(tmp_path / "c", "one", namespace="other")
    assert choose(Flags(), {"KUBECONFIG": f"{one}:{again}"}).namespace == "demo", "the first entry of a name wins"
    assert choose(Flags(kubeconfig=str(two)), environ).namespace == "default"


@pytest.mark.parametrize(
    "content", ["", "clusters: 3", "[]", "contexts: [{name: x, context: {cluster: gone}}]\ncurrent-context: x"]
)
def test_a_kubeconfig_that_leads_nowhere_is_named(tmp_path: Path, content: str) -> None:
    file = tmp_path / "config"
    file.write_text(content)
    with pytest.raises(ConfigError):
        choose(Flags(kubeconfig=str(file)), {})
    with pytest.raises(ConfigError, match="absent is not there"):
        choose(Flags(kubeconfig=str(tmp_path / "absent")), {})


def test_flags_after_the_command_win() -> None:
    assert Flags("a", None, "k").over(Flags("b", "c", None)) == Flags("a", "c", "k")
    assert Flags("a", "c", "k").for_kubectl() == ["--context=c", "--kubeconfig=k"]


def api_error(code: int, message: str) -> ApiError:
    request = httpx2.Request("GET", "https://c/x")
    response = httpx2.Response(code, json={"code": code, "message": message}, request=request)
    return ApiError(request=request, response=response)


def test_failures_are_sentences() -> None:
    request = httpx2.Request("GET", "https://c/x")
    unknown = httpx2.HTTPStatusError("404", request=request, response=httpx2.Response(404, request=request))
    assert explain(unknown) == NO_KIND
    assert explain(api_error(404, "gone")) == "the API server refuses: gone"
    assert "may not do that: no" in (explain(api_error(403, "no")) or "")
    assert "does not know you" in (explain(api_error(401, "Unauthorized")) or "")
    assert "does not answer: refused" in (explain(httpx2.ConnectError("refused")) or "")
    assert explain(ValueError("a fault of ours")) is None


def test_a_name_that_is_not_there_comes_with_its_neighbours() -> None:
    assert "did you mean smollm2?" in not_found("smolm2", "demo", ["smollm2", "qwen"])
    assert "there is qwen" in not_found("smolm2", "demo", ["qwen"])
    assert "-n names another namespace" in not_found("smolm2", "demo", [])


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://quire-router.quire-system", Target("quire-system", "quire-router", 80)),
        ("http://r.n.svc.cluster.local:8080", Target("n", "r", 8080)),
        ("https://models.example.com", None),
        ("http://127.0.0.1:8000", None),
        ("http://localhost:8000", None),
    ],
)
def test_services_are_told_from_other_addresses(url: str, target: Target | None) -> None:
    assert target_of(url) == target


@pytest.mark.parametrize(
    ("url", "loopback"), [("https://127.0.0.1:6443", True), ("https://[::1]:1", True), ("https://k8s.example", False)]
)
def test_loopback_is_known(url: str, loopback: bool) -> None:
    assert is_loopback(url) is loopback


def test_lines_of_a_stream() -> None:
    line = 'data: {"choices": [{"delta": {"reasoning_content": "hm", "content": "Paris"}}]}'
    assert list(pieces(line)) == [Piece("hm", thought=True), Piece("Paris")]
    for silent in ("", ": keep-alive", "data: [DONE]", 'data: {"choices": []}', 'data: {"choices": [{"delta": {}}]}'):
        assert list(pieces(silent)) == []
    with pytest.raises(PluginError, match="with an error: no room"):
        list(pieces('data: {"error": {"message": "no room"}}'))


def test_a_refusal_comes_with_a_remedy() -> None:
    assert refusal(401, b'{"error": {"message": "no key"}}').endswith("no key; --api-key or QUIRE_API_KEY gives a key")
    assert refusal(503, b"<html>busy</html>").startswith(
        "the router answered 503: <html>busy</html>; kubectl llmd status"
    )


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["st"], ["status"]),
        (["rollout", "p"], ["pause", "promote"]),
        (["-n", "demo", "rollout", "pause", "s"], ["smol"]),
        (["status", ""], ["smol", "qwen"]),
        (["status", "--wat"], ["--watch"]),
        (["scale", "smol", "--rep"], ["--replicas"]),
        (["status", "-w", "q"], ["qwen"]),
        (["chat", "smol", ""], []),
        (["status", "-n", ""], []),
    ],
)
def test_completion(words: list[str], found: list[str]) -> None:
    assert completions(get_command(app), words, lambda: ["smol", "qwen"]) == (found, NO_FILES)


def test_completion_of_a_file_is_the_shells() -> None:
    assert completions(get_command(app), ["--kubeconfig", ""], list)[1] == FILES


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["jump"], 2, "No such command"),
        (["scale", "x"], 2, "--replicas"),
        (["logs", "x", "-f", "-p"], 2, "exclude each other"),
        (["status", "-o", "yaml"], 2, "text or json"),
        (["status", "--kubeconfig", "/absent/file"], 1, "/absent/file is not there"),
    ],
)
def test_errors_are_one_line(capsys: pytest.CaptureFixture[str], words: list[str], status: int, said: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == status
    err = capsys.readouterr().err
    assert err.startswith("kubectl llmd: error: ") and said in err and len(err.splitlines()) == 1
