"""The kinds the operator touches, as plain maps: typed models would drop fields they do not know."""

from __future__ import annotations

from typing import Any

from lightkube.core.resource import ApiInfo, ResourceDef
from lightkube.generic_resource import GenericGlobalResource, GenericNamespacedResource, create_api_info

from quire_operator import labels


def _subresource(action: str, kind: str = labels.KIND, plural: str = labels.PLURAL) -> ApiInfo:
    own = ResourceDef(labels.GROUP, labels.VERSION, kind)
    return ApiInfo(resource=own, plural=plural, verbs=["get", "patch"], parent=own, action=action)


class LLMDeployment(GenericNamespacedResource):
    _api_info = create_api_info(labels.GROUP, labels.VERSION, labels.KIND, labels.PLURAL)


class LLMDeploymentStatus(GenericNamespacedResource):
    _api_info = _subresource("status")


class LLMDeploymentScale(GenericNamespacedResource):
    _api_info = _subresource("scale")


class ModelCache(GenericNamespacedResource):
    _api_info = create_api_info(labels.GROUP, labels.VERSION, labels.MODEL_CACHE_KIND, labels.MODEL_CACHES)


class ModelCacheStatus(GenericNamespacedResource):
    _api_info = _subresource("status", labels.MODEL_CACHE_KIND, labels.MODEL_CACHES)


class LLMAdapter(GenericNamespacedResource):
    _api_info = create_api_info(labels.GROUP, labels.VERSION, labels.ADAPTER_KIND, labels.ADAPTERS)


class LLMAdapterStatus(GenericNamespacedResource):
    _api_info = _subresource("status", labels.ADAPTER_KIND, labels.ADAPTERS)


class Deployment(GenericNamespacedResource):
    _api_info = create_api_info("apps", "v1", "Deployment", "deployments")


class StatefulSet(GenericNamespacedResource):
    _api_info = create_api_info("apps", "v1", "StatefulSet", "statefulsets")


class LeaderWorkerSet(GenericNamespacedResource):
    _api_info = create_api_info(labels.LWS_GROUP, "v1", "LeaderWorkerSet", "leaderworkersets")


class Service(GenericNamespacedResource):
    _api_info = create_api_info("", "v1", "Service", "services")


class Pod(GenericNamespacedResource):
    _api_info = create_api_info("", "v1", "Pod", "pods")


class PodStatus(GenericNamespacedResource):
    _api_info = ApiInfo(
        resource=ResourceDef("", "v1", "Pod"),
        plural="pods",
        verbs=["patch"],
        parent=ResourceDef("", "v1", "Pod"),
        action="status",
    )


class HorizontalPodAutoscaler(GenericNamespacedResource):
    _api_info = create_api_info("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")


class ServiceAccount(GenericNamespacedResource):
    _api_info = create_api_info("", "v1", "ServiceAccount", "serviceaccounts")


class PersistentVolumeClaim(GenericNamespacedResource):
    _api_info = create_api_info("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")


class PodDisruptionBudget(GenericNamespacedResource):
    _api_info = create_api_info("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")


class NetworkPolicy(GenericNamespacedResource):
    _api_info = create_api_info("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")


class ResourceClaimTemplate(GenericNamespacedResource):
    _api_info = create_api_info("resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates")


class Job(GenericNamespacedResource):
    _api_info = create_api_info("batch", "v1", "Job", "jobs")


class Event(GenericNamespacedResource):
    _api_info = create_api_info("events.k8s.io", "v1", "Event", "events")


class Secret(GenericNamespacedResource):
    _api_info = create_api_info("", "v1", "Secret", "secrets")


class ConfigMap(GenericNamespacedResource):
    _api_info = create_api_info("", "v1", "ConfigMap", "configmaps")


class Lease(GenericNamespacedResource):
    _api_info = create_api_info("coordination.k8s.io", "v1", "Lease", "leases")


class EndpointSlice(GenericNamespacedResource):
    _api_info = create_api_info("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")


class APIService(GenericGlobalResource):
    _api_info = create_api_info("apiregistration.k8s.io", "v1", "APIService", "apiservices")


Kind = type[Any]
"""One of the classes above."""

OF: dict[str, Kind] = {
    kind.__name__: kind
    for kind in (
        Deployment,
        StatefulSet,
        LeaderWorkerSet,
        Service,
        HorizontalPodAutoscaler,
        ServiceAccount,
        PersistentVolumeClaim,
        PodDisruptionBudget,
        NetworkPolicy,
        ResourceClaimTemplate,
        Job,
    )
}
"""Kinds that are applied, by name."""

STATUS_OF: dict[str, Kind] = {
    labels.KIND: LLMDeploymentStatus,
    labels.MODEL_CACHE_KIND: ModelCacheStatus,
    labels.ADAPTER_KIND: LLMAdapterStatus,
}
"""Status subresource of each kind of ours."""

SMALL: dict[str, Kind] = {labels.MODEL_CACHES: ModelCache, labels.ADAPTERS: LLMAdapter}
"""The kinds beside LLMDeployment, by plural."""
