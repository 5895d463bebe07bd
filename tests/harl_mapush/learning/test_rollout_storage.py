import torch

from harl_mapush.algorithms.algorithm import Decision
from harl_mapush.learning.on_policy.minibatches import (
    CPU_TILE_ROWS,
    CriticBatch,
    Shuffle,
    concatenate,
    gather,
    minibatches,
    row_tiles,
    sequence_starts,
    sequences,
    split,
    tiles,
)
from harl_mapush.learning.on_policy.rollout_storage import Storage, StorageShape
from mqe.vec_env import TimeStep


def make_step(terminated, truncated, valid) -> TimeStep:
    n = len(truncated)
    agents = len(terminated[0])
    obs = torch.zeros(n, agents, 2)
    state = torch.zeros(n, 3)
    tensors = (torch.tensor(terminated), torch.tensor(truncated), torch.tensor(valid))
    return TimeStep(obs, state, torch.zeros(n, agents), *tensors, obs, state, {})


def add(storage: Storage, t: int, step: TimeStep) -> None:
    n, agents = step.reward.shape
    zeros = torch.zeros(n, agents, 1)
    storage.add(t, step.obs, Decision(zeros, zeros, None), step)
    storage.finish()


def test_endings_become_masks():
    storage = Storage(
        StorageShape(2, 5, 2, 2, 1, (3,), 1), "cpu", learned_rewards=lambda rewards: rewards[:, :1]
    )
    # running | one agent dead | ended by the task | by the clock | broken, while the clock ran out
    terminated = [[False, False], [True, False], [True, True], [False, False], [False, True]]
    add(
        storage,
        0,
        make_step(terminated, [False, False, False, True, True], [True, True, True, True, False]),
    )
    assert storage.masks[1].tolist() == [1, 1, 0, 0, 0]
    assert storage.truncated[0].tolist() == [0, 0, 0, 1, 1]
    assert storage.bootstrapped[0].tolist() == [0, 0, 0, 1, 0]
    assert storage.valid[0].tolist() == [1, 1, 1, 1, 0]
    # After an end everybody lives.
    assert storage.active[:, 1].tolist() == [
        [1, 0, 1, 1, 1],
        [1, 1, 1, 1, 1],
    ]
    assert storage.weights(0)[0].tolist() == [1, 1, 1, 1, 0]  # a broken step counts for nobody
    assert storage.weights(0)[1].tolist() == [1, 0, 1, 1, 1]  # the dead do not count afterwards


def test_an_ending_clears_the_actors_hidden_states():
    storage = Storage(StorageShape(1, 3, 1, 2, 1, (3,), 1, (1, 2)), "cpu")
    step = make_step([[False], [True], [False]], [False, False, True], [True] * 3)
    hidden = torch.ones(1, 3, 1, 2)
    storage.add(0, step.obs, Decision(torch.zeros(3, 1, 1), torch.zeros(3, 1, 1), hidden), step)
    assert storage.actor_hidden is not None
    assert storage.actor_hidden[0, 1].tolist() == [[[1.0, 1.0]], [[0.0, 0.0]], [[0.0, 0.0]]]


def test_final_states_are_kept_unless_switched_off():
    shape = StorageShape(2, 3, 1, 2, 1, (3,), 1)
    final = Storage(shape, "cpu").final_state
    assert final is not None
    assert final.shape == (2, 3, 3)
    assert Storage(shape._replace(keeps_final_state=False), "cpu").final_state is None


def test_a_termination_at_the_last_tick_is_not_bootstrapped():
    storage = Storage(StorageShape(1, 1, 1, 2, 1, (3,), 1), "cpu")
    add(storage, 0, make_step([[True]], [True], [True]))
    assert storage.bootstrapped[0].tolist() == [0]


def test_the_first_rollout_begins_with_the_state_that_it_is_given():
    storage = Storage(StorageShape(2, 3, 1, 2, 1, (3,), 1), "cpu")
    state = torch.arange(9.0).view(3, 3)
    storage.start(torch.zeros(3, 1, 2), state)
    storage.begin()
    assert torch.equal(storage.state[0], state)


def test_the_next_rollout_begins_where_the_last_ended():
    storage = Storage(StorageShape(2, 2, 1, 2, 1, (3,), 1, (1, 4), (1, 4)), "cpu")
    for name in ("state", "masks", "active", "actor_hidden", "critic_hidden"):
        getattr(storage, name).normal_()
    copy = Storage(storage.shape, "cpu")
    copy.load_state_dict(storage.state_dict())
    storage.begin()
    copy.begin()
    assert torch.equal(storage.state[0], storage.state[-1])
    assert torch.equal(storage.masks[0], copy.masks[0])
    assert torch.equal(storage.active[:, 0], copy.active[:, -1])
    assert torch.equal(storage.actor_hidden[:, 0], copy.actor_hidden[:, 0])  # type: ignore[index]
    assert torch.equal(storage.critic_hidden[0], copy.critic_hidden[0])  # type: ignore[index]


def test_what_is_saved_and_restored_is_the_end_of_the_rollout():
    shape = StorageShape(3, 2, 2, 4, 1, (5,), 1, (1, 6), (1, 7), keeps_final_state=True)
    storage = Storage(shape, "cpu")
    restored = Storage(shape, "cpu")
    for name in ("state", "masks", "active", "actor_hidden", "critic_hidden"):
        tensor = getattr(storage, name)
        tensor.copy_(torch.arange(1.0, tensor.numel() + 1.0).view(tensor.shape))
    untouched = {
        name: tensor.clone()
        for name, tensor in vars(restored).items()
        if isinstance(tensor, torch.Tensor)
    }
    restored.load_state_dict(storage.state_dict())
    for name, tensor in untouched.items():
        ours = getattr(restored, name)
        theirs = getattr(storage, name)
        if name in ("state", "masks", "critic_hidden"):
            assert torch.equal(ours[-1], theirs[-1]), name
            assert torch.equal(ours[:-1], tensor[:-1]), name
        elif name in ("active", "actor_hidden"):
            assert torch.equal(ours[:, -1], theirs[:, -1]), name
            assert torch.equal(ours[:, :-1], tensor[:, :-1]), name
        else:
            assert torch.equal(ours, tensor), name


def test_rows_and_chunks_are_ordered_as_in_harl():
    x = torch.arange(12).view(4, 3)  # x[t, n] = 3 t + n
    assert sequences(x, None).tolist() == [list(range(12))]
    # chunks of two decisions, environment by environment
    assert sequences(x, 2).tolist() == [[0, 6, 1, 7, 2, 8], [3, 9, 4, 10, 5, 11]]
    assert sequences(x, 1).tolist() == [[0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11]]
    hidden = x.view(4, 3, 1, 1).float()
    for length in (1, 2, 4):  # a chunk begins where its hidden state does
        assert (
            sequence_starts(hidden, length).flatten().tolist() == sequences(x, length)[0].tolist()
        )
    assert sequence_starts(hidden, 2).flatten().tolist() == [0, 6, 1, 7, 2, 8]


def test_splits_are_views_and_gathers_keep_rows_together():
    column = torch.arange(10.0).view(1, 10, 1)
    batch = CriticBatch(column, column.clone(), column.clone(), column.clone(), None, None)
    parts = list(split(batch, 4))
    assert [part.state.flatten().tolist() for part in parts] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert parts[1].state.data_ptr() == batch.state[:, 4].data_ptr()
    assert [part.state.flatten().tolist() for part in split(batch, 3, number=2)] == [
        [0, 1, 2],
        [3, 4, 5],
    ]
    chosen = gather(batch, torch.tensor([7, 1]))
    assert [x.flatten().tolist() for x in chosen if x is not None] == [[7, 1]] * 4


def test_batches_are_joined_whole():
    """Two agents, L = 2, B = 2. Row numbers go by time first, then by sequence."""

    def batch(first):
        rows = torch.arange(first, first + 4.0).view(2, 2, 1)
        return CriticBatch(
            rows, rows, rows, rows[..., 0], torch.full((1, 2, 1, 1), first), rows[..., 0]
        )

    whole = concatenate([batch(0.0), batch(4.0)])
    assert whole.weights.tolist() == [[0.0, 1.0, 4.0, 5.0], [2.0, 3.0, 6.0, 7.0]]


def rows_of(length: int, num_rows: int) -> CriticBatch:
    column = torch.arange(float(length * num_rows)).view(length, num_rows, 1)
    return CriticBatch(column, column, column, column, None, None)


def test_a_tile_on_a_cpu_is_as_many_sequences_as_a_cache_holds_and_one_at_least():
    def cut(length: int, num_rows: int) -> list[int]:
        return [tile.state.shape[1] for tile in tiles(rows_of(length, num_rows))]

    assert cut(1, 2 * CPU_TILE_ROWS + 3) == [CPU_TILE_ROWS, CPU_TILE_ROWS, 3]
    assert cut(CPU_TILE_ROWS // 2, 5) == [2, 2, 1]
    assert cut(CPU_TILE_ROWS + 1, 2) == [1, 1]
    rows = row_tiles(torch.zeros(2 * CPU_TILE_ROWS + 3, 1))
    assert [len(tile) for tile in rows] == [CPU_TILE_ROWS, CPU_TILE_ROWS, 3]


def test_minibatches_of_one_batch_are_views_of_it():
    batch = rows_of(1, 6)
    shuffle = Shuffle(torch.Generator(), torch.Generator())
    for part in minibatches([batch], 2, 1, shuffle):
        assert part.state.data_ptr() == batch.state.data_ptr()
    first, second, again, _ = minibatches([batch], 2, 2, shuffle)
    # Of one ordered copy.
    assert second.state.data_ptr() == first.state.data_ptr() + 3 * first.state.element_size()
    assert again.state.data_ptr() == first.state.data_ptr()
