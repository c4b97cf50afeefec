"""The chart as Helm renders it: values and their schema, security, rights, names, and that both programs accept what it sets."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

import helm_kit
from helm_kit import CHART, NAMESPACE, ROOT, HelmError, Object
from quire_operator.settings import Settings as OperatorSettings
from quire_router.settings import Settings as RouterSettings

VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())

# Helm is built once from the Go module proxy where it is not in the cache yet.
pytestmark = pytest.mark.timeout(3600)

Render = Callable[..., list[Object]]


@pytest.fixture(scope="module")
def helm() -> Callable[..., str]:
    return helm_kit.helm


@pytest.fixture(scope="module")
def render(helm: Callable[..., str]) -> Render:
    return helm_kit.render


def by_kind(objects: list[Object], kind: str) -> list[Object]:
    return [item for item in objects if item["kind"] == kind]


def find(objects: list[Object], kind: str, name: str) -> Object:
    [found] = [item for item in by_kind(objects, kind) if item["metadata"]["name"] == name]
    return found


def pod_spec(objects: list[Object], name: str) -> Object:
    spec: Object = find(objects, "Deployment", name)["spec"]["template"]["spec"]
    return spec


def leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from leaves(value, (*path, key))
    else:
        yield path


def at(path: tuple[str, ...], value: Any) -> Object:
    for key in reversed(path):
        value = {key: value}
    result: Object = value
    return result


def merged(one: Object, other: Object) -> Object:
    both = {key: merged(one[key], other[key]) for key in one.keys() & other.keys() if isinstance(other[key], dict)}
    return {**one, **other, **both}


# -- values


def test_lint_is_strict_and_quiet(helm: Callable[..., str]) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))


def test_values_and_schema_name_the_same_keys() -> None:
    def keys(schema: Object) -> Any:
        properties = schema.get("properties")
        return {key: keys(value) for key, value in properties.items()} if properties else None

    def expected(tree: Any, schema: Object) -> Any:
        return (
            {key: expected(tree[key], schema["properties"][key]) for key in tree} if schema.get("properties") else None
        )

    of_schema = keys(SCHEMA)
    del of_schema["global"]
    # The elements of resources are open maps; their two keys may be left out of the defaults.
    assert of_schema == expected(VALUES, SCHEMA)


def test_every_value_is_explained_here_and_in_the_readme() -> None:
    """helm-docs makes the README's table of these comments; `make lint-chart` says whether it is stale."""
    block: list[str] = []
    for line in (CHART / "values.yaml").read_text().splitlines():
        if line.lstrip().startswith("#"):
            block.append(line.strip())
        elif re.match(r" *\w+: \S", line):
            assert block and block[0].startswith("# -- "), f"values.yaml has no `# -- ` above {line.strip()!r}"
            block = []
        else:
            block = []
    rows = re.findall(r"^\| ([\w.]+) \|", (CHART / "README.md").read_text(), re.MULTILINE)
    explained = {path if "resources" not in path else path[:3] for path in leaves(VALUES)}
    assert set(rows) - {"Key"} == {".".join(path) for path in explained}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"replicaCount": 2}, "replicaCount"),
        ({"router": {"replica": 2}}, "replica"),
        ({"images": {"runtime": {"name": "x"}}}, "name"),
        ({"operator": {"resources": {"request": {}}}}, "request"),
        ({"router": {"replicas": "two"}}, "replicas"),
        ({"operator": {"replicas": 11}}, "replicas"),
        ({"router": {"drainTimeoutSeconds": -1}}, "drainTimeoutSeconds"),
        ({"watchNamespaces": ["Not_A_Namespace"]}, "watchNamespaces"),
        ({"operator": {"logLevel": "loud"}}, "logLevel"),
        ({"imagePrefix": "mirror.internal"}, "imagePrefix"),
        ({"images": {"runtime": {"digest": "sha256:abc"}}}, "digest"),
        ({"downloads": {"hubEndpoint": "hub.internal"}}, "hubEndpoint"),
        ({"downloads": {"httpsProxy": "http://proxy/path"}}, "httpsProxy"),
        ({"metrics": {"rules": {"ttftSeconds": 3}}}, "ttftSeconds"),
        ({"metrics": {"podMonitor": {"interval": "15"}}}, "interval"),
    ],
)
def test_a_wrong_value_is_refused_by_name(render: Render, values: Object, named: str) -> None:
    with pytest.raises(HelmError, match=re.escape(named)):
        render(values)


OTHER: dict[tuple[str, ...], Any] = {
    ("images", "runtime", "pullPolicy"): "Never",
    ("images", "operator", "pullPolicy"): "Never",
    ("imagePullSecrets",): [{"name": "x"}],
    ("watchNamespaces",): ["a", "b"],
    ("imagePrefix",): "mirror.internal/",
    ("images", "runtime", "digest"): f"sha256:{'0' * 64}",
    ("images", "operator", "digest"): f"sha256:{'0' * 64}",
    ("downloads", "hubEndpoint"): "https://hub.internal",
    ("downloads", "httpsProxy"): "http://proxy:3128",
}
OTHER_BY_NAME: dict[str, Any] = {
    "logLevel": "debug", "logFormat": "json", "type": "NodePort", "annotations": {"a": "b"}, "podAnnotations": {"a": "b"},
    "podLabels": {"a": "b"}, "nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}],
    "affinity": {"nodeAffinity": {}}, "priorityClassName": "p", "extraEnv": [{"name": "A", "value": "b"}],
    "repository": "r", "tag": "t", "label": "found/by", "labels": {"a": "b"}, "objective": 0.9, "ttftSeconds": 1, "itlSeconds": 0.1,
    "interval": "1m",
}  # fmt: skip


def test_every_value_has_an_effect(render: Render) -> None:
    all_on = {"metrics": {name: {"enabled": True} for name in VALUES["metrics"]}}
    default = render(all_on)
    for path in leaves(VALUES):
        value: Any = VALUES
        for key in path:
            value = value[key]
        other = OTHER.get(path, OTHER_BY_NAME.get(path[-1]))
        if other is None:
            assert isinstance(value, bool | int | float | str), f"OTHER has no value for {path}"
            value = True if path[0] == "metrics" and path[-1] == "enabled" else value
            other = (not value) if isinstance(value, bool) else value + 1 if isinstance(value, int | float) else "7"
        assert render(merged(all_on, at(path, other))) != default, f"{'.'.join(path)} changes nothing"


# -- what the programs get


def test_the_operator_and_the_router_accept_what_the_chart_sets(
    render: Render, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = render({"watchNamespaces": ["a", "b"]})
    for name, kind in (("operator", OperatorSettings), ("router", RouterSettings)):
        [container] = pod_spec(objects, f"quire-{name}")["containers"]
        prefix = f"QUIRE_{name.upper()}_"
        for entry in container["env"]:
            field = entry["name"].removeprefix(prefix).lower()
            assert field in kind.model_fields, entry["name"]
            assert isinstance(entry["value"], str), f"{entry['name']} is no string"
            monkeypatch.setenv(entry["name"], entry["value"])
        settings = kind()
        assert settings.watch_namespaces == ("a", "b")
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        if isinstance(settings, RouterSettings):
            assert ports == {"http": settings.port, "metrics": settings.metrics_port}
            assert settings == RouterSettings.model_validate(
                RouterSettings().model_dump() | {"watch_namespaces": ("a", "b")}
            )
        else:
            assert ports == {
                "https": settings.metrics_api_port, "metrics": settings.metrics_port, "health": settings.health_port
            }  # fmt: skip
            assert settings.router_url == f"http://quire-router.{NAMESPACE}"
            assert settings.service == find(objects, "Service", "quire-operator")["metadata"]["name"]


def test_images_default_to_the_version_of_the_chart(render: Render) -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    objects = render()
    assert pod_spec(objects, "quire-router")["containers"][0]["image"] == f"quire/operator:{version}"
    env = {entry["name"]: entry["value"] for entry in pod_spec(objects, "quire-operator")["containers"][0]["env"]}
    assert env["QUIRE_OPERATOR_RUNTIME_IMAGE"] == f"quire/runtime:{version}"


def test_a_prefix_stands_in_front_of_every_image(render: Render) -> None:
    objects = render({"imagePrefix": "mirror.internal/quire-mirror/"})
    images = [
        container["image"]
        for item in by_kind(objects, "Deployment")
        for container in item["spec"]["template"]["spec"]["containers"]
    ]
    env = {entry["name"]: entry["value"] for entry in pod_spec(objects, "quire-operator")["containers"][0]["env"]}
    for image in (*images, env["QUIRE_OPERATOR_RUNTIME_IMAGE"]):
        assert image.startswith("mirror.internal/quire-mirror/quire/")


def test_policies_name_every_port_that_a_pod_has(render: Render) -> None:
    objects = render()
    for part in ("operator", "router"):
        [rule] = find(objects, "NetworkPolicy", f"quire-{part}")["spec"]["ingress"]
        [container] = pod_spec(objects, f"quire-{part}")["containers"]
        assert {each["port"] for each in rule["ports"]} == {each["name"] for each in container["ports"]}
        assert "from" not in rule, "whoever that is: the API server and the kubelet have no fixed addresses"


@pytest.mark.parametrize(("pre", "drain"), [(5, 120), (0, 0), (30, 7200), (0.5, 0.2)])
def test_the_grace_period_is_longer_than_the_drain(render: Render, pre: float, drain: float) -> None:
    objects = render({"router": {"preDrainSeconds": pre, "drainTimeoutSeconds": drain}})
    assert pod_spec(objects, "quire-router")["terminationGracePeriodSeconds"] >= pre + drain + 10


# -- security


def test_every_pod_meets_the_restricted_standard(render: Render) -> None:
    for deployment in by_kind(render(), "Deployment"):
        spec = deployment["spec"]["template"]["spec"]
        context = spec["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] == context["runAsGroup"] == 65532
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert all(volume.keys() <= {"name", "emptyDir"} for volume in spec["volumes"])
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}
            }  # fmt: skip
            assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}


def rules(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    for kind in ("Role", "ClusterRole"):
        for role in by_kind(objects, kind):
            for rule in role["rules"]:
                yield role["metadata"]["name"], rule


@pytest.mark.parametrize("namespaces", [[], ["a"]])
def test_no_right_is_a_wildcard(render: Render, namespaces: list[str]) -> None:
    found = list(rules(render({"watchNamespaces": namespaces})))
    assert found
    for name, rule in found:
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]], name
        assert not {"bind", "escalate", "impersonate"} & set(rule["verbs"])


def granted(objects: list[Object], name: str) -> dict[tuple[str, str], set[str]]:
    return {
        (group, resource): set(rule["verbs"])
        for role, rule in rules(objects)
        if role == name
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_the_operator_has_the_rights_its_page_lists(render: Render) -> None:
    page = (ROOT / "docs" / "operator.md").read_text().split("## Permissions")[1].split("\n\n")
    table = next(part for part in page if part.startswith("| ClusterRole"))
    listed = {}
    for row in table.splitlines()[2:]:
        group, resource, verbs = (cell.strip(" `") for cell in row.strip("|").split("|"))
        listed[("" if group == "(core)" else group, resource)] = set(verbs.split(", "))
    assert granted(render(), "quire-operator") == listed


def test_leader_worker_sets_are_used_where_the_cluster_has_them(render: Render) -> None:
    kind = ("leaderworkerset.x-k8s.io", "leaderworkersets")
    for api, said in (("", "false"), ("leaderworkerset.x-k8s.io/v1", "true")):
        objects = render(api=api)
        env = {each["name"]: each.get("value") for each in pod_spec(objects, "quire-operator")["containers"][0]["env"]}
        assert env["QUIRE_OPERATOR_LEADER_WORKER_SET"] == said
        assert granted(objects, "quire-operator").get(kind, set()) == (
            {"list", "create", "patch", "delete"} if api else set()
        )


def test_the_router_reads_three_kinds_and_nothing_else(render: Render) -> None:
    expected = {
        ("quire.dev", "llmdeployments"): {"list", "watch"},
        ("quire.dev", "llmadapters"): {"list", "watch"},
        ("discovery.k8s.io", "endpointslices"): {"list", "watch"},
    }
    assert granted(render(), "quire-router") == expected


def test_watching_some_namespaces_gives_rights_in_those_only(render: Render) -> None:
    objects = render({"watchNamespaces": ["a", "b"]})
    for part in ("quire-operator", "quire-router"):
        assert [
            role["metadata"]["namespace"] for role in by_kind(objects, "Role") if role["metadata"]["name"] == part
        ] == ["a", "b"]
        assert granted(objects, part) == granted(render(), part)
    names = {
        item["metadata"]["name"] for kind in ("ClusterRole", "ClusterRoleBinding") for item in by_kind(objects, kind)
    }
    assert names == {"quire-operator-metrics-api", "quire-view", "quire-edit"}
    least = render(
        {
            "watchNamespaces": ["a"],
            "metricsApi": {"enabled": False},
            "rbac": {"aggregate": False},
            "crds": {"install": False},
        }
    )
    assert {item["metadata"].get("namespace") for item in least} == {"a", NAMESPACE}, "something is cluster-wide"


def test_every_binding_joins_a_role_and_an_account_of_the_chart(render: Render) -> None:
    for namespaces in ([], ["a"]):
        objects = render({"watchNamespaces": namespaces})
        accounts = {item["metadata"]["name"] for item in by_kind(objects, "ServiceAccount")}
        roles = {
            (kind, item["metadata"]["name"], item["metadata"].get("namespace"))
            for kind in ("Role", "ClusterRole")
            for item in by_kind(objects, kind)
        } | {("Role", "extension-apiserver-authentication-reader", "kube-system")}
        for binding in [*by_kind(objects, "RoleBinding"), *by_kind(objects, "ClusterRoleBinding")]:
            reference = binding["roleRef"]
            assert (reference["kind"], reference["name"], binding["metadata"].get("namespace")) in roles
            [subject] = binding["subjects"]
            assert subject["name"] in accounts and subject["namespace"] == NAMESPACE
        for deployment in by_kind(objects, "Deployment"):
            assert deployment["spec"]["template"]["spec"]["serviceAccountName"] in accounts


# -- names and objects


def test_selectors_match_their_pods_and_no_others(render: Render) -> None:
    objects = render({"router": {"replicas": 3}})
    pods = {
        item["metadata"]["name"]: item["spec"]["template"]["metadata"]["labels"].items()
        for item in by_kind(objects, "Deployment")
    }
    for kind in ("Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"):
        for item in by_kind(objects, kind):
            selector = item["spec"].get("selector") or item["spec"]["podSelector"]
            wanted = selector.get("matchLabels", selector).items()
            assert [name for name, labels in pods.items() if wanted <= labels] == [item["metadata"]["name"]]


def test_everything_carries_the_common_labels(render: Render) -> None:
    for item in render({"router": {"replicas": 2}, "operator": {"replicas": 2}}):
        labels = item["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "quire"
        if item["kind"] != "CustomResourceDefinition":
            assert labels["app.kubernetes.io/managed-by"] == "Helm"
            assert labels["app.kubernetes.io/instance"] == "quire"
            assert labels["helm.sh/chart"] == "quire-0.1.0"


@pytest.mark.parametrize("part", ["operator", "router"])
def test_a_budget_exists_only_where_a_drain_can_still_go_on(render: Render, part: str) -> None:
    for replicas in (0, 1):
        assert by_kind(render({part: {"replicas": replicas}}), "PodDisruptionBudget") == []
    [budget] = by_kind(render({part: {"replicas": 3}}), "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1 and budget["metadata"]["name"] == f"quire-{part}"
    assert "minAvailable" not in budget["spec"]


def test_several_operators_hold_an_election_and_are_replaced_without_a_gap(render: Render) -> None:
    for replicas, strategy in ((1, "Recreate"), (2, "RollingUpdate")):
        objects = render({"operator": {"replicas": replicas}})
        spec = find(objects, "Deployment", "quire-operator")["spec"]
        assert spec["replicas"] == replicas and spec["strategy"]["type"] == strategy
        env = {entry["name"]: entry["value"] for entry in pod_spec(objects, "quire-operator")["containers"][0]["env"]}
        # Also a single one: at an upgrade to two they must not meet one that does not ask.
        assert env["QUIRE_OPERATOR_LEADER_ELECTION"] == "true"
        role = find(objects, "Role", "quire-operator-lease")
        assert role["metadata"]["namespace"] == env["QUIRE_OPERATOR_NAMESPACE"]
        assert [rule.get("resourceNames") for rule in role["rules"]] == [None, [env["QUIRE_OPERATOR_LEASE"]]]


def test_the_definitions_are_the_generated_ones_and_are_kept(render: Render) -> None:
    generated = {path.name: path.read_bytes() for path in sorted((ROOT / "crds").glob("*.yaml"))}
    assert generated == {path.name: path.read_bytes() for path in (CHART / "files" / "crds").glob("*.yaml")}
    rendered = by_kind(render(), "CustomResourceDefinition")
    assert rendered == [yaml.safe_load(text) for text in generated.values()]
    assert all(item["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for item in rendered)
    assert by_kind(render({"crds": {"install": False}}), "CustomResourceDefinition") == []


def test_the_metrics_api_leaves_its_authority_to_the_operator(render: Render) -> None:
    services = by_kind(render(), "APIService")
    assert {item["metadata"]["name"] for item in services} == {f"v1beta{n}.custom.metrics.k8s.io" for n in (1, 2)}
    for item in services:
        assert item["spec"]["service"] == {"name": "quire-operator", "namespace": NAMESPACE, "port": 443}
        assert not {"caBundle", "insecureSkipTLSVerify"} & item["spec"].keys()
    off = render({"metricsApi": {"enabled": False}})
    assert not [item for item in off if "metrics-api" in item["metadata"]["name"] or item["kind"] == "APIService"]
    assert not [item for item in off if item["metadata"].get("namespace") == "kube-system"]


def test_another_release_name_is_followed_everywhere(render: Render) -> None:
    text = json.dumps(render(release="acme"))
    assert "quire-router" not in text.replace('"app.kubernetes.io/name": "quire-router"', "")
    objects = render(release="acme")
    assert pod_spec(objects, "acme-operator")["serviceAccountName"] == "acme-operator"
    env = {entry["name"]: entry["value"] for entry in pod_spec(objects, "acme-operator")["containers"][0]["env"]}
    assert env["QUIRE_OPERATOR_ROUTER_URL"] == f"http://acme-router.{NAMESPACE}"
    [secret_rule] = [rule for _, rule in rules(objects) if "secrets" in rule["resources"] and "resourceNames" in rule]
    assert secret_rule["resourceNames"] == [env["QUIRE_OPERATOR_CERT_SECRET"]]


def test_no_two_objects_share_a_name(render: Render) -> None:
    for values in (
        {},
        {"watchNamespaces": ["a", "b", NAMESPACE], "router": {"replicas": 2}, "operator": {"replicas": 2}},
    ):
        keys = [
            (item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"])
            for item in render(copy.deepcopy(values))
        ]
        assert len(keys) == len(set(keys))
