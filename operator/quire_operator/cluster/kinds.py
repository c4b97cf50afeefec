"""The kinds the operator touches, as plain maps: typed models would drop fields they do not know."""

from __future__ import annotations

from typing import Any

from lightkube.core.resource import ApiInfo, ResourceDef
from lightkube.generic_resource import GenericGlobalResource, GenericNamespacedResource, create_api_info

from quire_operator import labels

_OWN = ResourceDef(labels.GROUP, labels.VERSION, labels.KIND)


def _subresource(action: str) -> ApiInfo:
    return ApiInfo(resource=_OWN, plural=labels.PLURAL, verbs=["get", "patch"], parent=_OWN, action=action)


class LLMDeployment(GenericNamespacedResource):
    _api_info = create_api_info(labels.GROUP, labels.VERSION, labels.KIND, labels.PLURAL)


class LLMDeploymentStatus(GenericNamespacedResource):
    _api_info = _subresource("status")


class LLMDeploymentScale(GenericNamespacedResource):
    _api_info = _subresource("scale")


class Deployment(GenericNamespacedResource):
    _api_info = create_api_info("apps", "v1", "Deployment", "deployments")


class Service(GenericNamespacedResource):
    _api_info = create_api_info("", "v1", "Service", "services")


class Pod(GenericNamespacedResource):
    _api_info = create_api_info("", "v1", "Pod", "pods")


class HorizontalPodAutoscaler(GenericNamespacedResource):
    _api_info = create_api_info("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")


class Event(GenericNamespacedResource):
    _api_info = create_api_info("events.k8s.io", "v1", "Event", "events")


class Secret(GenericNamespacedResource):
    _api_info = create_api_info("", "v1", "Secret", "secrets")


class ConfigMap(GenericNamespacedResource):
    _api_info = create_api_info("", "v1", "ConfigMap", "configmaps")


class APIService(GenericGlobalResource):
    _api_info = create_api_info("apiregistration.k8s.io", "v1", "APIService", "apiservices")


Kind = type[Any]
"""One of the classes above."""
