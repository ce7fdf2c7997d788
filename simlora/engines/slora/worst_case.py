"""S-LoRA's worst-case memory test, and how long a request that failed it will go on failing.

Requests that run together only grow, so the pool is fullest just before one of them ends. At the end of request k those
that have as many tokens to come, or more, are all there:

    need = max over k of sum over j with rem_j >= rem_k of units(cur_j + rem_k)

with cur tokens now and rem to come, both taken at the next decode step. Source: `ReqQueue._can_add_new_req` in
slora/server/router/req_queue.py (c1ddf48), whose rows hold one token each; for pages each request's tokens are rounded
up to whole pages. In numbers of steps nothing moves while requests decode: a request that emits its last token in step
`last`, with `base` + n tokens before step n, has rem = last - n and cur = base + n + 1.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from simlora.engines.request import Request

Holder = tuple[int, int]
"""(-last, base): ascending order puts the longest first."""


def holder(request: Request) -> Holder:
    """A request that decodes."""
    return -request.last_step, request.base


def newcomer(request: Request, step: int) -> Holder:
    """A request that would be admitted before decode step `step`; the code takes it to have one token and to lack
    output_tokens - 1 more, one more than it does after its prefill."""
    return -(step + request.output_tokens - 1), request.prefill_tokens - step


class WorstCase:
    """The decoding requests of one engine, longest first."""

    __slots__ = ("holders", "unit_tokens")

    def __init__(self, unit_tokens: int, holders: list[Holder] | None = None) -> None:
        self.unit_tokens = unit_tokens
        self.holders: list[Holder] = [] if holders is None else holders

    def copy(self) -> WorstCase:
        """Another one to try newcomers in."""
        return WorstCase(self.unit_tokens, self.holders.copy())

    def add(self, item: Holder) -> None:
        """One more that holds memory."""
        insort(self.holders, item)

    def remove(self, item: Holder) -> None:
        """One less; it must be there."""
        index = bisect_left(self.holders, item)
        if self.holders[index : index + 1] != [item]:
            raise ValueError(f"nobody holds {item}")
        del self.holders[index]

    def need(self) -> int:
        """Units at the fullest moment; 0 when nobody is there."""
        return max(self.peaks(), default=0)

    def peaks(self) -> list[int]:
        """Units at the end of each, in order; for equals the last entry is the whole."""
        if self.unit_tokens == 1:
            return self._row_peaks()
        size, peaks, total, residues = self.unit_tokens, [], 0, [0] * self.unit_tokens
        for count, (minus_last, base) in enumerate(self.holders, 1):
            total += base + 1
            residues[(base + 1) % size] += 1
            tokens = total - count * minus_last
            waste = sum(n * (-(residue - minus_last) % size) for residue, n in enumerate(residues) if n)
            peaks.append((tokens + waste) // size)
        return peaks

    def _row_peaks(self) -> list[int]:
        peaks, total = [], 0
        for count, (minus_last, base) in enumerate(self.holders, 1):
            total += base + 1
            peaks.append(total - count * minus_last)
        return peaks


def steps_refused(running: WorstCase, request: Request, step: int, last_step: int, limit: int) -> int | None:
    """Decode steps from `step` on before the request passes the test need < limit, which it fails before `step`.

    None: it does not before last_step, up to which the batch stays as it is. A peak of the others to which the request
    adds falls by a token a step; the request's own end comes later each step and finds the others larger, but fewer.
    Both forbid ranges of steps; the first step outside all of them is the answer.
    """
    forbidden = _at_ends_of_others(running, request, step, limit)
    forbidden += _at_own_end(running, request, step, last_step, limit)
    forbidden.sort()
    first = step + 1
    for low, high in forbidden:
        if low > first:
            break
        first = max(first, high + 1)
    return first - step if first <= last_step else None


def _at_ends_of_others(running: WorstCase, request: Request, step: int, limit: int) -> list[tuple[int, int]]:
    """Ranges of steps [first, last] in which some other's end would find too little memory."""
    size, prompt, rest = running.unit_tokens, request.prefill_tokens, request.output_tokens - 1
    out = []
    for (minus_last, _), peak in zip(running.holders, running.peaks(), strict=True):
        most = limit - 1 - peak
        """Units left for the request at that moment."""
        low = step if most < 0 else -minus_last - rest
        high = prompt - minus_last - most * size
        if low <= high:
            out.append((low, high))
    return out


def _at_own_end(running: WorstCase, request: Request, step: int, last_step: int, limit: int) -> list[tuple[int, int]]:
    """Ranges of steps in which the request's own end would find too little."""
    size, rest = running.unit_tokens, request.output_tokens - 1
    own = -(-(request.prefill_tokens + 1 + rest) // size)
    out, total, holders = [], 0, running.holders
    for count in range(len(holders) + 1):
        if count:
            total += holders[count - 1][1] + 1
        low = max(-holders[count][0] - rest + 1, step) if count < len(holders) else step
        high = min(-holders[count - 1][0] - rest, last_step) if count else last_step
        if low > high:
            continue
        left = limit - 1 - own
        fits = _largest_end(holders[:count], total, size, left, low + rest, high + rest) - rest
        if fits < high:
            out.append((max(low, fits + 1), high))
    return out


def _largest_end(holders: list[Holder], total: int, size: int, left: int, low: int, high: int) -> int:
    """The largest end within [low, high] at which the holders take at most `left` units; low - 1 if there is none."""
    if not holders:
        return high if left >= 0 else low - 1
    if size == 1:
        return min(max((left - total) // len(holders), low - 1), high)
    while low <= high:
        middle = (low + high) // 2
        if sum(-(-(base + 1 + middle) // size) for _, base in holders) <= left:
            low = middle + 1
        else:
            high = middle - 1
    return high
