"""Which images go, and how a parked node store becomes the seed's."""

from hypothesis import given
from hypothesis import strategies as st

from cluster.store import refresh, superseded


def test_the_newest_images_of_each_repository_stay() -> None:
    loaded = {"q/runtime:a": 1.0, "q/runtime:b": 2.0, "q/runtime:c": 3.0, "q/operator:a": 0.5, "q/pause:1": 0.1}
    assert superseded(loaded, protect=()) == ["q/runtime:a"]
    assert superseded(loaded, protect=["q/runtime:a"]) == [], "what was just asked for stays, however old"
    assert superseded(loaded, protect=(), keep=1) == ["q/runtime:a", "q/runtime:b"]


LAYERS = st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from([str(n) for n in range(12)]), max_size=8).filter(
    lambda layers: len(set(layers.values())) == len(layers)
)


@given(
    seed=LAYERS,
    parked=LAYERS,
    strays=st.sets(st.sampled_from([str(n) for n in range(16)])),
    lost=st.sets(st.sampled_from("abcdefgh")),
)
def test_a_refreshed_store_holds_exactly_the_seed(
    seed: dict[str, str], parked: dict[str, str], strays: set[str], lost: set[str]
) -> None:
    # The world: folder -> the layer in it; strays hold no layer, lost layers are listed but their folder is gone.
    world = dict.fromkeys(strays, "stray") | {folder: layer for layer, folder in parked.items() if layer not in lost}
    for layer in lost & parked.keys():
        world.pop(parked[layer], None)
    plan = refresh(seed, parked, world)
    moved = {new: world.pop(old) for old, new in plan.rename.items()}
    for folder in plan.delete:
        del world[folder]
    assert world == {}
    linked = {folder: layer for layer, folder in seed.items() if folder in plan.link}
    assert not moved.keys() & linked.keys()
    assert moved | linked == {folder: layer for layer, folder in seed.items()}
    assert all(seed.get(layer) != folder or folder not in plan.link for folder, layer in moved.items())


def test_nothing_is_linked_again_that_is_there() -> None:
    plan = refresh({"a": "1", "b": "2"}, {"a": "1", "b": "7", "x": "3"}, ["1", "7", "3", "9"])
    assert plan.rename == {"1": "1", "7": "2"}
    assert plan.delete == ["3", "9"]
    assert plan.link == []
