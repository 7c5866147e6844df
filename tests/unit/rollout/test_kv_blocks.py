"""Pages: none is held twice, none is lost, and what is found again holds the tokens that are asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_sql.rollout.kv_blocks import BlockTable, OutOfPagesError, PrefixCache, block_owner

SIZE = 4


def book_of(pages: int, room: int = 9) -> PrefixCache:
    book = PrefixCache(SIZE, room)
    book.grow(pages)
    return book


def test_a_prompt_that_begins_alike_copies_what_is_kept() -> None:
    book = book_of(9)
    first = book.open(range(10))
    assert (len(first.pages), first.reused, first.copies) == (3, 0, [])
    written = book.keep(range(10), first.pages)
    assert [page for page, _ in written] == first.pages[:2]
    again = book.open([*range(8), 50, 51])
    assert again.reused == 8
    assert again.copies == [(kept, page) for (_, kept), page in zip(written, again.pages, strict=False)]
    assert book.keep([*range(8), 50, 51], again.pages) == []
    assert book.open([1, *range(1, 8), 50]).reused == 0, "a page is found only behind those before it"


def test_the_last_token_is_always_computed() -> None:
    book = book_of(8)
    opened = book.open(range(8))
    book.keep(range(8), opened.pages)
    assert book.open(range(8)).reused == 4


def test_what_other_weights_wrote_is_forgotten() -> None:
    book = book_of(6)
    held = book.open(range(9))
    book.keep(range(9), held.pages)
    assert book.next_key(range(9)) is None
    book.forget()
    assert book.next_key(range(9)) is not None
    book.close(held.pages)
    assert len(book.free) == 6


def test_too_few_pages_take_none() -> None:
    book = book_of(2)
    with pytest.raises(OutOfPagesError) as full:
        book.open(range(17))
    assert full.value.missing == 3
    assert len(book.free) == 2


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_pages_of_prompts_are_held_once_and_hold_what_is_said(data: st.DataObject) -> None:
    """A model beside the book: what each page and each kept page holds, written when a prompt is opened."""
    book = book_of(9, data.draw(st.integers(0, 5)))
    holds: dict[int, tuple[int, ...]] = {}
    kept: dict[int, tuple[int, ...]] = {}
    live: list[list[int]] = []
    for _ in range(data.draw(st.integers(1, 25))):
        what = data.draw(st.sampled_from(["open", "open", "open", "close", "forget"]))
        if what == "open":
            tokens = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=18))
            try:
                opened = book.open(tokens)
            except OutOfPagesError:
                continue
            assert opened.reused < len(tokens)
            for source, target in opened.copies:
                holds[target] = kept[source]
            for j in range(opened.reused // SIZE):
                assert holds[opened.pages[j]] == tuple(tokens[: (j + 1) * SIZE])
            for j in range(opened.reused // SIZE, len(opened.pages)):
                holds[opened.pages[j]] = tuple(tokens[: (j + 1) * SIZE])
            for page, place in book.keep(tokens, opened.pages):
                assert place < book.room
                kept[place] = holds[page]
            live.append(opened.pages)
        elif what == "close" and live:
            book.close(live.pop(data.draw(st.integers(0, len(live) - 1))))
        elif what == "forget":
            book.forget()
        held = [page for pages in live for page in pages]
        assert sorted([*held, *book.free]) == list(range(9))
        assert len({entry.page for entry in book.known.values()}) == len(book.known)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.lists(st.integers(0, 30), min_size=3, max_size=3), min_size=1, max_size=12))
def test_rows_hold_what_they_need_and_no_page_twice(needs: list[list[int]]) -> None:
    book = BlockTable(SIZE, 3, 6, 7)
    for need in needs:
        before, total = book.table(), book.total
        try:
            book.cover(np.array(need))
        except OutOfPagesError as full:
            np.testing.assert_array_equal(book.table(), before)
            book.grow(book.total + full.missing)
            book.cover(np.array(need))
        table = book.table()
        held = table[table < book.total]
        assert sorted([*held.tolist(), *book.free]) == list(range(book.total))
        for row, tokens in enumerate(need):
            pages = min(-(-tokens // SIZE), 6)
            assert (table[row, :pages] < book.total).all()
            assert (table[row, pages:] == book.total).all()
            # What a row goes on holding stays where it is: its keys are there.
            stays = min(pages, int((before[row] < total).sum()))
            np.testing.assert_array_equal(table[row, :stays], before[row, :stays])


def test_the_way_back_names_owner_and_place() -> None:
    owner, start = block_owner(np.array([[2, 5], [0, 5]], np.int32), 4, SIZE)
    assert owner.tolist() == [1, 2, 0, 2]
    assert start.tolist() == [0, 0, 0, 0]
    owner, start = block_owner(np.array([[1, 3]], np.int32), 4, SIZE)
    assert start.tolist() == [0, 0, 0, 4]
