"""`spec.model.cache`: the volume that downloaded files are kept on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from quire_operator.api.base import ApiModel, ObjectName, Size, rule, rules, text_rule

AccessMode = Literal["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"]
SHARED: AccessMode = "ReadWriteMany"

_SHARED_THEN = "has(oldSelf.accessModes) && oldSelf.accessModes.exists(mode, mode == 'ReadWriteMany')"
_SHARED_NOW = "has(self.accessModes) && self.accessModes.exists(mode, mode == 'ReadWriteMany')"
_BOTH = f"!({_SHARED_THEN} && {_SHARED_NOW})"
_CLASS = "(has({0}.storageClassName) ? {0}.storageClassName : '')"


class Cache(ApiModel):
    """Exactly one of size (a new claim), claimName (one that exists) and hostPath (a folder of the node)."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "(has(self.size) ? 1 : 0) + (has(self.claimName) ? 1 : 0) + (has(self.hostPath) ? 1 : 0) == 1",
                "cache needs exactly one of size (a new claim), claimName (a claim that exists) and hostPath (a folder of the node)",
            ),
            rule(
                "has(self.size) || !(has(self.storageClassName) || has(self.accessModes))",
                "storageClassName and accessModes belong to a new claim: give its size too, or remove them",
            ),
            rule(
                f"{_BOTH} || {_CLASS.format('self')} == {_CLASS.format('oldSelf')}",
                "storageClassName of a shared claim cannot change: remove cache first, then give it anew",
            ),
            rule(
                f"{_BOTH} || !has(self.size) || !has(oldSelf.size) || "
                "quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0",
                "size of a shared claim can grow but not shrink: remove cache first, then give it anew",
            ),
        )
    )

    size: Size | None = Field(
        default=None,
        description="Size of a new claim, as 20Gi; all models that it shall hold, and some room. Default: no new claim.",
    )
    storage_class_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="Class of the new claim. Default: the cluster's default class.",
    )
    access_modes: tuple[AccessMode, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=3,
        description=(
            "With ReadWriteMany one claim, <name>-cache, is shared by all pods and revisions: one download. Without it every pod "
            "has a claim of its own, which goes with the pod, so that no pod ever waits for another one's volume. "
            "Default: [ReadWriteOnce]."
        ),
    )
    claim_name: ObjectName | None = Field(
        default=None,
        description=(
            "Claim that exists in the namespace. All pods use it: with more than one pod at a time, also while rolling, it must be "
            "ReadWriteMany, or they must fit on one node. Default: none."
        ),
    )
    host_path: Annotated[str, Field(max_length=512)] | None = Field(
        default=None,
        json_schema_extra=rules(
            text_rule(
                "self.matches('^(/[^/ ]+)+$') && !(self + '/').contains('/../')",
                "hostPath must be an absolute path such as /var/lib/quire-models",
            )
        ),
        description=(
            "Folder of the node, shared by the pods on it, and kept. Created when missing, but then writable for root only: user "
            "65532 must be able to write there. Namespaces with the restricted or baseline pod security standard refuse it. Default: none."
        ),
    )

    @property
    def shared(self) -> bool:
        """One claim of ours for all pods."""
        return self.size is not None and SHARED in (self.access_modes or ())
