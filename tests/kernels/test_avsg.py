"""AVSG's match: equal on every backend, no false hit, slots preserved within a step, no stale hit after it."""

import hisparse_kernels as hk
import pytest
import torch
from avsg_steps import AvsgCase, avsg_battery, run_avsg_steps, selections
from hisparse_kernels import avsg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from steps import running

BACKENDS = ["reference", "cpu-shared", "cpu", "cuda"]
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: `make gpu-check` on a machine that has one")
EVERY_BACKEND = pytest.mark.parametrize(
    "backend", [pytest.param(b, marks=[pytest.mark.gpu, NO_GPU]) if b == "cuda" else b for b in BACKENDS]
)


@st.composite
def cases(draw):
    tokens, k = draw(st.integers(1, 4)), draw(st.integers(1, 20))
    return AvsgCase(
        num_slots=tokens * k + draw(st.integers(0, 30)),
        top_k=k,
        lengths=draw(st.lists(st.integers(1, 200), min_size=1, max_size=3)),
        steps=draw(st.integers(1, 6)),
        seed=draw(st.integers(0, 2**31)),
        tokens=tokens,
        buckets=2 ** draw(st.integers(1, 7)),
        life=draw(st.integers(1, 20)),
        probes=draw(st.integers(0, 9)),
        spread=draw(st.sampled_from([1.0, 0.3])),
    )


@EVERY_BACKEND
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(case=cases(), block_threads=st.sampled_from([32, 96]))
def test_random_steps(backend, case, block_threads):
    """Equal to the torch formulation bit by bit; slots given to a step's tokens hold their positions to its end."""
    with running(backend, block_threads):
        run_avsg_steps(case, "cuda" if backend == "cuda" else "cpu")


@EVERY_BACKEND
@pytest.mark.parametrize("index", range(4))
def test_the_battery(backend, index):
    case = avsg_battery()[index]
    with running(backend):
        run_avsg_steps(case, "cuda" if backend == "cuda" else "cpu")
    assert case.misses


class LifeModel:
    """Section 3.5 with a dict in place of the table, so that no mapping is ever lost."""

    def __init__(self, slots, life):
        self.held, self.life, self.full = [None] * slots, [0] * slots, life + 1

    def token(self, wanted, first):
        if first:
            self.life = [max(x - 1, 0) for x in self.life]
        where = {p: s for s, p in enumerate(self.held) if p is not None}
        hits = [p for p in wanted if p in where]
        misses = [p for p in wanted if p not in where]
        for p in hits:
            self.life[where[p]] = self.full
        while sum(x == 0 for x in self.life) < len(misses):
            self.life = [max(x - 1, 0) for x in self.life]
        dead = [s for s, x in enumerate(self.life) if x == 0][: len(misses)]
        for s, p in zip(dead, misses, strict=True):
            self.held[s], self.life[s], where[p] = p, self.full, s
        return [where[p] for p in wanted], misses


@pytest.mark.parametrize(("life", "tokens"), [(1, 1), (4, 1), (200, 1), (3, 4), (30, 2)])
def test_with_room_for_every_word_it_is_the_policy_itself(life, tokens):
    case = AvsgCase(100, 24, [600], 60, life, tokens=tokens, spread=0.4)
    g = torch.Generator().manual_seed(life)
    state, model = avsg.new_state(1, 100, 1 << 14), LifeModel(100, life)
    total = 0
    for step in range(case.steps):
        for token in range(tokens):
            n = 600 + step * tokens + token
            selection = selections(case, [n], g, distinct=True)
            slots, plan = avsg.match(
                selection,
                torch.tensor([0]),
                torch.tensor([n]).int(),
                state,
                avsg.Settings(life),
                first_token=token == 0,
            )
            wanted = [p for p in selection[0].tolist() if 0 <= p < n - 1]
            expected, misses = model.token(wanted, token == 0)
            assert [s for s in slots[0].tolist() if 0 <= s < 100] == expected
            assert plan.positions.tolist() == misses
            total += len(misses)
    assert 0 < total < case.steps * tokens * 24


def test_hits_grow_with_probes_and_buckets():
    """Lost words cost fetches, never correctness: fewer buckets and probes miss more."""
    case = AvsgCase(96, 48, [500], 80, 0, spread=0.3)
    misses = {}
    for buckets, probes in [(2, 0), (64, 0), (64, 8), (256, 8), (1 << 14, 8)]:
        g, state = torch.Generator().manual_seed(1), avsg.new_state(1, 96, buckets)
        misses[buckets, probes] = 0
        for step in range(case.steps):
            n = torch.tensor([500 + step]).int()
            selection = selections(case, n.tolist(), g, distinct=True)
            _, plan = avsg.match(selection, torch.tensor([0]), n, state, avsg.Settings(50, probes))
            misses[buckets, probes] += int(plan.per_row.sum())
    counts = list(misses.values())
    assert counts == sorted(counts, reverse=True) and counts[0] > 2 * counts[-1]


class Speculative:
    """A request under MTP over a host pool whose unverified records are rewritten; records are their own version."""

    def __init__(self, tokens=4, top_k=12, slots=64, prompt=150, page=8, capacity=1000, buckets=None):
        self.g = torch.Generator().manual_seed(tokens)
        self.tokens, self.top_k, self.verified, self.page = tokens, top_k, prompt, page
        self.state = avsg.new_state(1, slots, buckets)
        self.cache = torch.zeros(1, slots + 1, 1, dtype=torch.int64)
        self.host = torch.zeros(capacity, 1, dtype=torch.int64)
        self.table = torch.randperm(capacity // page, generator=self.g)[None].int()
        self.version = 0
        self.write(0, prompt)

    def write(self, begin, end):
        """New records for positions begin..end - 1."""
        for p in range(begin, end):
            self.version += 1
            self.host[hk.host_records(self.table, torch.tensor(0), torch.tensor(p), self.page)] = self.version

    def step(self, invalidate):
        """One MTP step; returns how many of the gathered records are not what the host holds, and the misses."""
        lengths = [self.verified + t for t in range(self.tokens)]
        self.write(self.verified - 1, lengths[-1])
        lines = []
        for n in lengths:
            recent = torch.arange(max(n - 5, 0), n)  # its own, and the drafts before it
            old = torch.randperm(n - 5, generator=self.g)[: self.top_k - len(recent)]
            lines.append(torch.cat([recent, old]))
        selection = torch.stack(lines)[None].int()
        seq_lens = torch.tensor([lengths]).int()
        pools = self.cache, self.host, self.table, self.page
        slots, plan = avsg.resolve_tokens(selection, torch.tensor([0]), seq_lens, self.state, *pools)
        got = hk.gather(self.cache, slots[0]).squeeze(-1)
        records = hk.host_records(self.table, torch.tensor(0), selection[0].long(), self.page)
        stale = int((got != self.host[records, 0]).sum())
        if invalidate:
            avsg.invalidate(torch.tensor([0]), torch.tensor([self.verified]).int(), self.state)
        self.verified += int(torch.randint(1, self.tokens + 1, (1,), generator=self.g))
        return stale, selection, plan


@EVERY_BACKEND
def test_no_stale_hit(backend):
    if backend == "cuda":
        pytest.skip("the records of this test are on the CPU")
    with running(backend):
        request = Speculative()
        assert sum(request.step(invalidate=True)[0] for _ in range(120)) == 0


def test_without_invalidation_hits_are_stale():
    """The test above can fail: the same steps without it read overwritten records."""
    request = Speculative()
    assert sum(request.step(invalidate=False)[0] for _ in range(120)) > 50


def test_later_tokens_hit_what_earlier_ones_reserved():
    """From an empty buffer each distinct position is fetched once, whichever tokens select it."""
    request = Speculative(buckets=1 << 14)
    _, selection, plan = request.step(invalidate=True)
    distinct = set(selection.flatten().tolist())
    assert sorted(plan.positions.tolist()) == sorted(distinct) and len(distinct) < 40


def test_what_a_step_keeps_is_verified():
    request = Speculative()
    for _ in range(30):
        verified = request.verified
        request.step(invalidate=True)
        assert request.state.slot_positions.max() < verified
        assert request.state.life[request.state.slot_positions < 0].eq(0).all()


def test_the_tokens_of_a_step_must_fit():
    request = Speculative(tokens=4, top_k=12, slots=47)
    before = [t.clone() for t in request.state]
    with pytest.raises(ValueError, match="4 tokens of k=12 positions do not fit B=47 slots"):
        request.step(invalidate=True)
    assert all(torch.equal(a, b) for a, b in zip(before, request.state, strict=True))


def test_resolve_moves_the_records():
    g = torch.Generator().manual_seed(3)
    host = torch.randint(0, 1000, (512, 3), generator=g)
    cache, table = torch.zeros(2, 41, 3, dtype=torch.int64), torch.randperm(64, generator=g).view(2, 32).int()
    state = avsg.new_state(2, 40)
    for n in range(200, 230):
        selection = torch.stack([torch.randperm(n - 1, generator=g)[:32] for _ in range(2)]).int()
        rows, lens = torch.tensor([1, 0]), torch.tensor([n, n]).int()
        slots, _ = avsg.resolve(selection, rows, lens, state, cache, host, table, 8)
        records = hk.host_records(table, rows[:, None], selection.long(), 8)
        assert torch.equal(hk.gather(cache, slots), host[records])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: avsg.new_state(1, 0), r"0 slots are outside \[1, 65536\]"),
        (lambda: avsg.new_state(1, 8, 12), "buckets=12 is not a power of two above 1"),
        (lambda: _match(k=9), "k=9 selected positions do not fit B=8 slots"),
        (lambda: _match(settings=avsg.Settings(life=255)), "life=255, probes=8: need 1 to 254"),
        (lambda: _match(settings=avsg.Settings(probes=-1)), "probes=-1"),
        (lambda: _match(length=3), r"selection\[0, 3\] = 3 is outside"),
        (lambda: _match(dtype=torch.int64), "selection is torch.int64"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def _match(k=4, length=50, dtype=torch.int32, settings=avsg.DEFAULTS):
    lens = torch.tensor([length], dtype=torch.int32)
    return avsg.match(torch.arange(k, dtype=dtype)[None], torch.tensor([0]), lens, avsg.new_state(1, 8), settings)
