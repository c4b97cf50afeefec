"""A simulated cluster for the rollout policy: workloads, pods that start, fail and drain, a router, a status, a clock.

The world obeys decisions the way a cluster does: late, and not always as a whole. An operator may die between the sizes and the
status; the Deployment controller and the kubelets act when `play` is called. What must never happen is checked at every decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from quire_operator.policy import Control, Decision, Progress, RevisionView, Situation, Strategy, decide, find

Health = Literal["healthy", "crashes", "stuck", "flaps"]


@dataclass
class Pod:
    """One pod; `work` is the number of requests it has."""

    ready: bool = False
    restarts: int = 0
    terminating: bool = False
    work: int = 0
    ready_at: float = 0.0
    index: int = 0


@dataclass
class World:
    """One LLMDeployment's part of a cluster."""

    strategy: Strategy
    target: str = "a"
    wanted: int = 2
    now: float = 1_000_000.0
    sizes: dict[str, int] = field(default_factory=dict)
    pods: dict[str, list[Pod]] = field(default_factory=dict)
    created: dict[str, float] = field(default_factory=dict)
    health: dict[str, Health] = field(default_factory=dict)
    stable: str | None = None
    progress: Progress | None = None
    control: Control = field(default_factory=Control)
    command: str | None = None
    weights: Mapping[str, int] = field(default_factory=dict)
    unrouted: Mapping[str, float] = field(default_factory=dict)
    verdict: Literal["pass", "wait", "fail"] = "pass"
    proven_s: float = 0.0
    ordered: bool = False
    """Workloads are StatefulSets: what is last goes first, ready or not, and a pod's place is free once it is gone."""
    up_s: float = 20.0
    """How long a pod that flaps is ready before it ends, each time."""
    last: Decision | None = None

    # -- the operator

    def views(self) -> tuple[RevisionView, ...]:
        return tuple(self._view(name) for name in self.sizes)

    def _view(self, name: str) -> RevisionView:
        mine = self.pods.get(name, [])
        ready = [pod for pod in mine if pod.ready and not pod.terminating]
        return RevisionView(
            name=name,
            desired=self.sizes[name],
            ready=len(ready),
            pods=len(mine),
            created=f"{self.created[name]:020.3f}",
            crashing=any(pod.restarts >= 3 and not pod.ready for pod in mine),
            in_flight=sum(pod.work for pod in ready),
            weight=self.weights.get(name, 0),
            unrouted_at=self.unrouted.get(name),
            settling=tuple(left for pod in ready if (left := self._settling(pod)) > 0),
            places={pod.index: self._settling(pod) <= 0 for pod in ready} if self.ordered else None,
            fallen=sum(
                pod.restarts > 0 and not pod.terminating and not (pod.ready and self._settling(pod) <= 0)
                for pod in mine
            ),
        )

    def _settling(self, pod: Pod) -> float:
        return self.proven_s * (6 if pod.restarts else 1) - abs(self.now - pod.ready_at)

    def situation(self) -> Situation:
        return Situation(
            target=self.target,
            wanted=self.wanted,
            views=self.views(),
            strategy=self.strategy,
            now=self.now,
            stable=self.stable,
            progress=self.progress,
            control=self.control,
            command=self.command,
            verdict=self.verdict,
        )

    def look(self, *, dies_before_status: bool = False) -> Decision:
        """One look of the operator: decide, set sizes, write the status."""
        situation = self.situation()
        decision = decide(situation)
        check(situation, decision)
        for name, size in decision.sizes.items():
            if name not in self.sizes:
                self.created[name] = self.now
                self.pods[name] = []
            self.sizes[name] = size
            view, live = find(situation.views, name), [pod for pod in self.pods[name] if not pod.terminating]
            stays = sum(pod.ready and pod.index < size for pod in live)
            if not self.ordered:
                stays = min(sum(pod.ready for pod in live), size)
            assert view.ready_at(size) == stays, "not what the workload would keep"
        for name in decision.delete:
            assert not self.pods[name], f"{name} is deleted with pods left"
            del self.sizes[name], self.pods[name]
        self.last = decision
        if not dies_before_status:
            self.stable, self.progress, self.control = decision.stable, decision.progress, decision.control
            self.weights, self.unrouted = dict(decision.weights), dict(decision.unrouted)
            if decision.consumed:
                self.command = None
        return decision

    # -- the cluster

    def play(self) -> None:
        """The Deployment controller and the kubelets, one step: unready pods go first, new ones begin unready."""
        for name, size in self.sizes.items():
            if self.ordered:
                self._play_ordered(name, size)
                continue
            kept = [pod for pod in self.pods[name] if not pod.terminating]
            kept.sort(key=lambda pod: pod.ready)
            gone = max(len(kept) - size, 0)
            for pod in kept[:gone]:
                pod.terminating = True
            # A terminating pod is there for one more step, as it drains.
            leaving = kept[:gone]
            for pod in kept[gone:]:
                self._live(name, pod)
            self.pods[name] = [*leaving, *kept[gone:], *(Pod() for _ in range(size - len(kept)))]

    def _play_ordered(self, name: str, size: int) -> None:
        there = [pod for pod in self.pods[name] if not pod.terminating]
        for pod in there:
            if pod.index >= size:
                pod.terminating = True
            else:
                self._live(name, pod)
        taken = {pod.index for pod in self.pods[name]}
        self.pods[name] = [*there, *(Pod(index=index) for index in range(size) if index not in taken)]

    def _live(self, name: str, pod: Pod) -> None:
        health = self.health.get(name, "healthy")
        falls = health == "flaps" and pod.ready and self.now - pod.ready_at >= self.up_s
        works = health in ("healthy", "flaps") and not falls
        if works and not pod.ready:
            pod.ready_at = self.now
        pod.ready = works
        pod.restarts += health == "crashes" or falls
        pod.work = 1 if pod.ready and self.routed(name) else 0

    def routed(self, name: str) -> bool:
        """Whether the router sends requests there, by what the status says."""
        by_weight = self.strategy.by_weight and self.progress is not None
        return not by_weight or self.weights.get(name, 0) > 0

    def serving(self) -> int:
        """Ready pods that get requests."""
        return sum(
            pod.ready and not pod.terminating for name, pods in self.pods.items() if self.routed(name) for pod in pods
        )

    def run(self, steps: int, *, dt: float = 5.0) -> None:
        for _ in range(steps):
            self.look()
            self.play()
            self.now += dt

    def settled(self) -> bool:
        """The target alone, whole, and another look changes nothing."""
        before = (dict(self.sizes), self.stable, self.progress, self.control, dict(self.weights))
        decision = self.look()
        after = (dict(self.sizes), self.stable, self.progress, self.control, dict(self.weights))
        alone = all(size == (self.wanted if name == self.target else 0) for name, size in self.sizes.items())
        return alone and before == after and decision.progress is None and decision.stable == self.target


def started(strategy: Strategy, *, wanted: int = 2, **more: Any) -> World:
    """A world in which revision `a` serves and nothing is under way."""
    world = World(strategy, wanted=wanted, **more)
    world.run(6)
    assert world.settled()
    return world


def check(situation: Situation, decision: Decision) -> None:
    """What must hold for every decision in every situation."""
    views, wanted, strategy = situation.views, situation.wanted, situation.strategy
    ready = {view.name: view.ready for view in views}
    weights, sizes = decision.weights, decision.sizes
    assert all(weight == 0 or ready.get(name, 0) > 0 for name, weight in weights.items()), "a share without ready pods"
    assert all(0 <= weight <= 100 for weight in weights.values())
    assert sum(weights.values()) == (100 if any(ready.values()) else 0), f"shares add up to {sum(weights.values())}"
    assert all(size >= 0 for size in sizes.values())
    assert set(sizes) >= {view.name for view in views} and decision.goal in sizes
    if decision.again_s is not None:
        assert decision.again_s >= 0
    for name in decision.delete:
        view = find(views, name)
        assert view.desired == view.pods == 0 and name not in (situation.target, decision.goal, decision.stable)
    if wanted == 0:
        assert not any(sizes.values())
        return
    if strategy.name == "Recreate":
        others = [view for view in views if view.name != decision.goal]
        if any(view.pods or view.desired for view in others) and not decision.control.paused:
            assert sizes[decision.goal] == 0, "two revisions at once"
        return

    def routed(view: RevisionView) -> bool:
        return not strategy.by_weight or (view.weight > 0 and weights[view.name] > 0)

    before = sum(view.kept_ready for view in views if routed(view))
    after = sum(view.ready_at(sizes[view.name]) for view in views if routed(view))
    least = max(wanted - strategy.limits.max_unavailable, 0)
    assert after >= min(before, least), f"{before} pods answered, {after} are left, {least} must be"

    if strategy.by_weight:
        before = sum(view.kept_ready for view in views if view.weight > 0)
        after = sum(view.ready_at(sizes[view.name]) for view in views if weights[view.name] > 0)
        assert after >= min(before, least), f"{before} pods had requests, only {after} will get them, {least} must"

    surge = strategy.limits.max_surge
    surge = max(surge, wanted) if strategy.name == "BlueGreen" else surge
    total = sum(view.desired for view in views)
    assert sum(sizes.values()) <= max(total, wanted + surge), "above the surge"

    for view in views:
        if strategy.by_weight and view.weight > 0 and weights[view.name] == 0:
            assert view.ready_at(sizes[view.name]) >= view.kept_ready, "pods are taken before the router knows"
    goal, stable = find(views, decision.goal), find(views, decision.stable)
    if goal.crashing and goal.ready == 0 and goal.name != stable.name and routed(stable):
        left = min(stable.kept_ready, wanted)
        assert stable.ready_at(sizes[stable.name]) >= left, "a crashing candidate costs a stable pod"
    if strategy.name == "BlueGreen" and goal.name != stable.name and stable.kept_ready >= wanted:
        moves = goal.weight == 0 and weights[goal.name] > 0
        assert not moves or goal.proven.ready >= wanted, "requests move to a set that is not steadily ready"
    if strategy.name == "Canary" and stable.ready and goal.name != stable.name and decision.progress is not None:
        step = decision.progress.step
        if step < len(strategy.steps):
            assert weights[goal.name] <= strategy.steps[step].weight, "more than the step's share"


def freed(world: World) -> World:
    """The same world with nothing in its way any more: healthy pods, no pause, no abort."""
    world.health = {}
    world.verdict = "pass"
    world.command = "retry" if world.control.aborted else "resume" if world.control.paused else None
    for pods in world.pods.values():
        for pod in pods:
            pod.restarts = 0
    return world
