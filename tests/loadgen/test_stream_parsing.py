"""Event splitting, token counting and judging of streams, byte by byte and case by case."""

from __future__ import annotations

import json
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.loadgen.alike import Copies
from harness.loadgen.counts import Deltas, Uncountable, count_tokens
from harness.loadgen.reading import StreamReading
from harness.loadgen.sse import EventSplitter, NotSSE, events

BODY = b': comment\n\ndata: {"a": 1}\n\nevent: error\r\ndata: x\r\n\r\nid: 3\ndata:two\ndata: lines\n\ndata: [DONE]\n\n'
DATA = [b'{"a": 1}', b"x", b"two\nlines", b"[DONE]"]


@given(st.sets(st.integers(1, len(BODY) - 1)))
def test_events_do_not_depend_on_how_the_network_cut_them(cuts):
    edges = [0, *sorted(cuts), len(BODY)]
    pieces = [(float(end), BODY[start:end]) for start, end in pairwise(edges)]
    found = list(events(pieces))
    assert [event.data for event in found] == DATA
    assert [event.name for event in found] == [b"", b"error", b"", b""]
    for event in found:  # stamped by the piece that brought the end of its last data line
        last_line = event.data.split(b"\n")[-1]
        end = BODY.index(last_line) + len(last_line)
        end += 1
        assert event.time_s == min(edge for edge in edges if edge >= end)


def test_whole_events_take_the_short_way_and_give_the_same():
    stream = [
        b"data: {}\n\n",
        b"data: a\n",
        b"data: b\n\n",
        b"data: \n\n",
        b"data:c\n\n",
        b"data: d\r\n\r\n",
        b"data: [DONE]\n\n",
    ]
    found = list(events(enumerate(stream)))
    assert [(event.time_s, event.data) for event in found] == [
        (0, b"{}"),
        (2, b"a\nb"),
        (3, b""),
        (4, b"c"),
        (5, b"d"),
        (6, b"[DONE]"),
    ]


def test_last_event_without_a_blank_line_counts():
    assert [e.data for e in events([(1.0, b"data: [DONE]")])] == [b"[DONE]"]


def test_a_line_of_no_known_field_is_refused():
    with pytest.raises(NotSSE, match="Bad gateway"):
        list(events([(1.0, b"data: {}\n\n<p>Bad gateway</p>\n")]))


def deltas(*triples):
    return Deltas(*map(list, zip(*triples, strict=True)))


def test_continuous_usage_counts_what_it_grew_by_whatever_the_text():
    counts = count_tokens(deltas((1, "", None), (2, "", 1), (3, "ab", 3), (4, "", 3), (5, "c", 4), (6, "", 4)), 4)
    assert counts == ([2, 3, 5], [1, 2, 1], "continuous_usage", False)


def test_usage_zero_until_the_end_is_not_continuous():
    counts = count_tokens(deltas((1, "a", 0), (2, "b", 0), (3, "", 2)), 2)
    assert counts == ([1, 2], [1, 1], "usage", False)


def test_chunks_that_came_together_are_one():
    together = deltas((1, "a", 1), (1, "b", 2), (2, "c", 3), (3, "d", 4), (3, "e", 5))
    assert count_tokens(together, 5) == ([1, 2, 3], [2, 1, 2], "continuous_usage", False)
    together.completed = [None] * 5
    assert count_tokens(together, 5).tokens == [2, 1, 2]


def test_chunks_of_one_size_are_told_from_their_texts():
    sizes = count_tokens(deltas((1, "abcdefgh", None), (2, "abcdef", None), (3, "abcdefghi", None), (4, "x", None)), 13)
    assert sizes.tokens == [4, 4, 4, 1]
    uneven = count_tokens(deltas((1, "ab", None), (2, "abcdefghijklmnop", None), (3, "abcdef", None)), 12)
    assert uneven.tokens[1] > uneven.tokens[2] > uneven.tokens[0] == 1


def test_final_usage_one_token_per_text():
    counts = count_tokens(deltas((1, "", None), (2, "a", None), (3, "b", None), (4, "", None)), 2)
    assert counts == ([2, 3], [1, 1], "usage", False)


def test_final_usage_spread_over_equal_chunks():
    counts = count_tokens(deltas(*((float(i), "abcdefgh", None) for i in range(4))), 16)
    assert counts.tokens == [4, 4, 4, 4]
    assert not counts.held_back


def test_text_held_back_is_noticed():
    held = [(1.0, "", None)] * 15 + [(2.0, "abcd" * 16, None)] + [(3.0 + i, "abcd", None) for i in range(16)]
    counts = count_tokens(deltas(*held), 32)
    assert counts.tokens == [16] + [1] * 16
    assert counts.held_back
    assert count_tokens(deltas((1.0, "everything at once", None)), 16).held_back
    assert count_tokens(deltas((1.0, "everything at once", 16)), 16).held_back


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(0, 100))
def test_a_spread_keeps_the_total_and_leaves_no_chunk_empty(lengths, extra):
    counts = count_tokens(deltas(*((0.0, "x" * n, None) for n in lengths)), len(lengths) + extra)
    assert sum(counts.tokens) == len(lengths) + extra
    assert min(counts.tokens) >= 1


@pytest.mark.parametrize(
    ("chunks", "total", "message"),
    [
        ([(1, "a", None)], None, "no usage"),
        ([(1, "", None)], 3, "no chunk carried text"),
        ([(1, "a", None), (2, "b", None)], 1, "2 chunks carried text, but usage says 1"),
        ([(1, "a", 2), (2, "b", 1)], 1, "falls from 2 to 1"),
        ([(1, "a", 1)], 2, "ends at 1 tokens, the final usage says 2"),
    ],
)
def test_what_cannot_be_counted_is_said(chunks, total, message):
    with pytest.raises(Uncountable, match=message):
        count_tokens(deltas(*chunks), total)


def read(*payloads, end=b"data: [DONE]\n\n"):
    body = b"".join(b"data: " + json.dumps(p).encode() + b"\n\n" for p in payloads) + end
    reading = StreamReading()
    for event in events([(1.0, body)]):
        reading.add(event)
    return reading


def chunk(text="", count=None, finish=None, **more):
    choice = {"text": text, "finish_reason": finish}
    usage = {"usage": {"prompt_tokens": 5, "completion_tokens": count}} if count is not None else {}
    return {"choices": [choice]} | usage | more


GOOD = (chunk("a", 1), chunk("b", 2, "length"))


def test_a_good_stream():
    reading = read(*GOOD)
    assert reading.judge(2, exact=True, broken=None) is None
    assert (reading.text, reading.prompt_tokens, reading.finish_reason) == ("ab", 5, "length")


def test_chat_deltas_with_role_and_reasoning():
    def delta(**d):
        return {"choices": [{"delta": d}]}

    usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    reading = read(delta(role="assistant", content=""), delta(reasoning_content="hm"), delta(content="x"), usage)
    assert reading.judge(2, exact=True, broken=None) is None
    assert reading.text == "hmx"
    assert reading.count().tokens == [2]  # they came together


@pytest.mark.parametrize(
    ("reading", "kind"),
    [
        (read(GOOD[0], {"error": {"message": "boom"}}), "stream_error"),
        (read(GOOD[0], {"error": "boom"}), "stream_error"),
        (read(GOOD[0], {"object": "error", "message": "boom"}), "stream_error"),
        (read(GOOD[0], end=b"event: error\ndata: {}\n\n"), "stream_error"),
        (read(GOOD[0], chunk("b", 2, "abort")), "stream_error"),
        (read(GOOD[0], end=b""), "early_stop"),
        (read(end=b""), "early_stop"),
        (read(GOOD[0]), "early_stop"),
        (read(end=b"data: [DONE]\n\n"), "early_stop"),
        (read(chunk("a")), "early_stop"),
        (read(chunk("a", 1, "length")), "wrong_length"),
        (read(*GOOD, chunk("c", 3)), "wrong_length"),
        (read(chunk("a"), chunk("b", finish="length")), "malformed"),
        (read(chunk("a", 10**30), GOOD[1]), "malformed"),
        (read(GOOD[0], end=b'data: {"choices": [], "usage": {"completion_tokens": 1e400}}\n\n'), "malformed"),
        (read(chunk("a", -1)), "malformed"),
        (read(chunk("a", 1.5)), "malformed"),
        (read(end=b"data: {'a'\n\n"), "malformed"),
        (read(end=b"data: [1]\n\n"), "malformed"),
        (read({"choices": [None]}), "malformed"),
        (read({"choices": [{"text": 3}]}), "malformed"),
        (read({"id": 1}), "malformed"),
        (read(chunk("a", "two")), "malformed"),
    ],
)
def test_failure_classes(reading, kind):
    problem = reading.judge(2, exact=True, broken=None)
    assert problem is not None
    assert problem[0] == kind
    assert "\n" not in problem[1]
    assert problem[1]


def test_a_null_count_is_no_count():
    null = {"usage": {"prompt_tokens": None, "completion_tokens": None}}
    assert read(chunk("a") | null, chunk("b", finish="length"), chunk(count=2)).judge(2, exact=True) is None
    reading = read(chunk("a") | null, chunk("b", finish="length") | null)
    assert reading.judge(2, exact=True) == ("malformed", "no usage in the stream, so its tokens cannot be counted")
    huge = read(chunk("a", 10**30)).judge(2, exact=True)[1]
    assert "completion_tokens is 1" in huge and "no number of tokens" in huge


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@given(cuts=st.sets(st.integers(1, 120)))
def test_lines_may_end_as_the_standard_says(bom, end, cuts):
    body = bom + BODY.replace(b"\r\n", b"\n").replace(b"\n", end)
    edges = [0, *sorted(cut for cut in cuts if cut < len(body)), len(body)]
    pieces = [(float(stop), body[start:stop]) for start, stop in pairwise(edges)]
    assert [event.data for event in events(pieces)] == DATA


def test_fewer_tokens_are_right_when_eos_may_stop():
    assert read(chunk("a", 1, "stop")).judge(2, exact=False, broken=None) is None
    assert read(chunk("abc", 3, "stop")).judge(2, exact=False, broken=None)[0] == "wrong_length"


def test_a_break_matters_only_before_the_end():
    assert read(*GOOD).judge(2, exact=True, broken="reset") is None
    assert read(*GOOD, end=b"").judge(2, exact=True, broken="reset") == ("early_stop", "reset")
    assert read(*GOOD, end=b"").judge(2, exact=True, broken=None) is None  # finish reason, orderly end


WHOLE = [
    chunk("a", 1),
    chunk('}\n\ndata: {"x', 2),
    chunk("é🙂\\", 3),
    chunk("b"),
    chunk("", 4, "length"),
    chunk("t", 5, total_tokens=7),
    chunk("u", 10, total_tokens=9),
    {"choices": [{"delta": {"content": "d"}, "finish_reason": None}]},
    {"choices": [{"delta": {"content": 'e"\t'}, "finish_reason": None}]},
    {"choices": [{"delta": {"content": "f", "reasoning": "g"}}]},
    {"choices": [{"text": "h", "finish_reason": None}], "usage": {"prompt_tokens": 0, "completion_tokens": 6}},
    {"choices": [{"text": "i", "logprobs": {"tokens": 3}, "finish_reason": None}]},
    {"choices": [{"text": "j"}, {"text": "k"}]},
    {"text": "l", "output_ids": [1], "meta_info": {"prompt_tokens": 5, "completion_tokens": 1}},
    {"text": "lm", "output_ids": [1, 2], "meta_info": {"prompt_tokens": 5, "completion_tokens": 2}},
    {"error": {"message": "boom"}},
    {"choices": []},
    chunk("c", 10**30),
]
USUAL = b'data: {"choices":[{"text":"%b","finish_reason":null}],"usage":{"prompt_tokens":5,"completion_tokens":%b}}\n\n'
VALUES = [  # a text, a count: what may stand between the quotes, and what may not
    (b"x", b"1"),
    (b"\\n", b"2"),
    (b"\\ud83d", b"3"),  # half a pair
    (b"\xc3", b"4"),  # half a character
    (b"x\t", b"5"),
    (b'x"', b"6"),
    (b'x","finish_reason":null,"y":"', b"7"),
    (b"x\\", b"8"),
    (b'","', b"9"),
    (b"\\u0000", b"10"),
    (b"\0", b"11"),
    (b"x", b"01"),
    (b"x", b"1.5"),
    (b"x", b"null"),
    (b"x", b"-1"),
    (b"x", b"99999999999"),
    (b"x", b"12,13"),
    (b"x", b'14},"usage":{"completion_tokens":15'),
]
RAW = [b"data: {]}\n\n", b'data: {"a":[{}\n\n', b"data: {}]}\n\n", b"data: {},{}\n\n", b"data: [DONE]\n\n", b": x\n\n"]
PIECE = st.one_of(
    st.sampled_from([b"data: " + json.dumps(p).encode() + b"\n\n" for p in WHOLE]),
    st.sampled_from([USUAL % values for values in VALUES]),
    st.sampled_from(RAW),
    st.just(b"da"),
    st.just(b'data: {"choices":[{"te'),
)


def read_alike(groups):
    """All pieces, and where a group of them can be read together, that way; and how many were."""
    copies, splitter, reading, together = Copies(), EventSplitter(), StreamReading(), 0
    for pieces in groups:
        chunks = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
        batch = copies.read([1.0] * len(chunks), b"".join(chunks), list(accumulate(map(len, chunks))))
        if batch and splitter.between:
            reading.add_batch(batch)
            together += len(pieces)
        else:
            for piece in pieces:
                for event in splitter.feed(1.0, piece):
                    reading.add(event)
    return reading, together


@given(st.lists(st.lists(st.one_of(PIECE, st.just(USUAL % VALUES[0])), min_size=1, max_size=4), max_size=7))
def test_alike_events_say_what_each_would(groups):
    alone, splitter = StreamReading(), EventSplitter()
    try:
        for piece in (piece for pieces in groups for piece in pieces):
            for event in splitter.feed(1.0, piece):
                alone.add(event)
    except NotSSE:
        with pytest.raises(NotSSE):
            read_alike(groups)
        return
    assert read_alike(groups)[0] == alone


@pytest.mark.parametrize("usage", [{}, {"usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}}])
@pytest.mark.parametrize("choice", [{"text": "x"}, {"delta": {"content": "x", "reasoning_content": None}}])
def test_alike_events_are_not_parsed_one_by_one(choice, usage):
    pieces = []
    for number in range(1, 20):
        count = {"usage": usage["usage"] | {"completion_tokens": number, "total_tokens": 3 + number}} if usage else {}
        payload = {"id": "cmpl-1", "created": 9 + number, "choices": [choice | {"finish_reason": None}]} | count
        pieces.append(b"data: " + json.dumps(payload, separators=(",", ":")).encode() + b"\n\n")
    reading, together = read_alike([pieces])
    assert together == 19
    assert (reading.text, reading.completion_tokens) == ("x" * 19, 19 if usage else None)
    other = pieces[3].replace(b"finish_reason", b"why")
    assert read_alike([pieces[:3], [other, *pieces[4:]], [other]])[1] == 4  # not the mixed group
