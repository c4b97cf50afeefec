"""Serves custom.metrics.k8s.io to the API server's aggregator, over TLS with a certificate made and renewed here.

Only the aggregator is answered: it has authenticated and authorised the caller already, and proves itself by the
front-proxy client certificate. Nothing here decides how many replicas there should be.
"""

from quire_operator.metrics_api.service import MetricsApi

__all__ = ["MetricsApi"]
