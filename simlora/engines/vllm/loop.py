"""The loop that plays a vLLM replica, with all that lasts from one change to the next in local variables."""

from __future__ import annotations

from heapq import heappop, heappush

from simlora.engines.base import NEVER_S, TOKENS
from simlora.engines.epoch import alternate, index_after, index_at, plan_ahead
from simlora.engines.run_log import pack_row, with_late
from simlora.engines.vllm.run_state import NO_PRICE, NOBODY, NOBODY_WAITS, RunState
from simlora.engines.vllm.scheduler import record
from simlora.latency.step import GPU, Prefill


def play(state: RunState, until_s: float, single: bool = False, last: bool = False) -> bool:
    """From one change to the next: a request that comes, or the boundary at which the run in progress is over.

    At a boundary the run's row is written and its tokens are handed out. Then the next step is planned and priced,
    and a run of such steps begins. All that lasts from one change to the next is kept in local variables. What
    nothing stands in the way of is done here: steps of decodes alone, and the prompt of the only request that
    waits; the scheduler is asked about everything else.

    single: one change only. last: nothing comes after the run in progress. True: a step was planned.
    """
    (
        engine, requests, prices, decodes, kv, waiting, slots, heap, bins, members, line, size, in_batch, active,
        write, in_s, inbox, replica_of, routed_s, admitted_s, first_token_s, last_token_s, first_run, last_run,
        adapter_of, rank_of, prefill_tokens, output_tokens, emitted_tokens, max_num_seqs, max_tokens, all_tokens,
    ) = state.parts  # fmt: skip
    asynchronous, light, coalesce, taken = engine.asynchronous, state.light, state.coalesce, state.taken
    e_start_s, e_first_s, e_gap_s, e_slope_s = state.epoch
    e_steps, e_residual_s, e_version, rows = state.e_steps, state.e_residual_s, state.priced_version, state.log.count
    host_s, again_s, load_s, base_s, attention_s, lora_s, collective_s, slope_s, outside = state.step_price
    busy, planned, in_flight, first_weight = state.busy, state.planned, state.in_flight, state.first_weight
    start, to, start_s, running, next_s = state.start, state.end, state.run_start_s, state.running, state.next_s
    count, preempted, plan, late, asleep = state.decode_count, state.preempted, state.plan, state.late, state.asleep
    num_prefills, new_tokens, context, by_reason, adapters, used_blocks, waste, new_preemptions = state.row_values
    preemptions, arrivals = state.preemptions, len(inbox)
    if prices is not None:
        (
            fixed_s, price_fixed, load_of, context_token_s, request_s, pair_s, least_tail_s, skip_s, largest,
            stretched, out_s, out_request_s,
        ) = prices  # fmt: skip
    slot_rank, tokens_per_decode = engine.limits.max_lora_rank, engine.tokens_per_decode
    arrival_s = in_s[taken] if taken < arrivals else NEVER_S
    now_s, did_plan = state.now_s, False
    while True:
        if arrival_s < next_s:
            # --- a request comes
            if arrival_s > until_s:
                break
            request = inbox[taken]
            came_s = routed_s[request] = arrival_s
            replica_of[request] = state.index
            taken += 1
            arrival_s = in_s[taken] if taken < arrivals else NEVER_S
            if not light or prefill_tokens[request] + output_tokens[request] > all_tokens:
                rejected = not engine.fits(request)
            else:
                rejected = False
            if rejected:
                requests.reject(request)
                state.rejected += 1
                if single:
                    break
                continue
            state.outstanding += 1
            if light and not waiting.size and not slots.full and len(in_batch) < max_num_seqs:
                waiting.push(request)
                could_admit, reason = True, TOKENS
            else:
                could_admit, reason = engine.enqueue(request, came_s), engine.arrival_reason
            if busy:
                late.append((reason, came_s))
                if could_admit and asleep:
                    e_first_s = next_s = came_s
                elif could_admit and to - start > 1:  # the run ends at its next boundary
                    index = index_after(e_start_s, e_first_s, e_gap_s, e_slope_s, came_s)
                    if index < to:
                        to = index if index > start else start + 1
                        done = to - 1
                        next_s = e_first_s + done * e_gap_s + e_slope_s * (done * (done - 1) / 2)
                if single:
                    break
                continue
            now_s = came_s
        else:
            if next_s > until_s:
                break
            now_s = next_s
        if busy:
            # --- the run in progress is over: its row, and what came out
            steps = to - start
            finishing = engine.finishing
            first_s = e_first_s
            if start:
                first_s = e_first_s + start * e_gap_s + e_slope_s * (start * (start - 1) / 2)
            in_run = float(running)
            slots_w, kv_w, seqs_w, tokens_w = by_reason
            if finishing and asynchronous and steps > 1:
                in_run -= len(finishing) * (now_s - first_s) / (now_s - start_s)
            if late:
                if len(late) == 1 and late[0][0] == TOKENS and now_s > start_s:
                    tokens_w += (now_s - late[0][1]) / (now_s - start_s)
                else:
                    slots_w, kv_w, seqs_w, tokens_w = with_late(by_reason, late, start_s, now_s)
                late = []
                if engine.late:
                    done = to - 2
                    engine.mark_skipped(
                        e_start_s if done < 0 else e_first_s + done * e_gap_s + e_slope_s * (done * (done - 1) / 2)
                    )
            if start:
                write(pack_row(
                    start_s, first_s - start_s, count, e_gap_s + e_slope_s * start, e_slope_s, steps, count,
                    num_prefills, new_tokens, context, in_run, slots_w, kv_w, seqs_w, tokens_w, adapters, used_blocks,
                    again_s, 0.0, base_s, attention_s + slope_s * start, lora_s, collective_s, waste, new_preemptions,
                ))  # fmt: skip
            else:
                write(pack_row(
                    start_s, first_s - start_s, first_weight if asynchronous else count, e_gap_s, e_slope_s, steps,
                    count, num_prefills, new_tokens, context, in_run, slots_w, kv_w, seqs_w, tokens_w, adapters,
                    used_blocks, host_s if steps == 1 else (host_s + (steps - 1) * again_s) / steps, load_s, base_s,
                    attention_s, lora_s, collective_s, waste, new_preemptions,
                ))  # fmt: skip
            if outside:
                outside_s = state.log.outside_s
                outside_s[outside] = outside_s.get(outside, 0.0) + now_s - start_s
            if light:
                first = engine.in_flight_first
                if first or finishing:
                    token_s = first_s + (out_s + out_request_s * running)
                    for request in first:
                        if first_token_s[request] != first_token_s[request]:
                            first_token_s[request], first_run[request] = token_s, rows
                        else:
                            state.resume(request, first_s)
                    if finishing:
                        for request, blocks in finishing:
                            last_token_s[request], last_run[request] = token_s, rows
                            if request in in_batch:  # else it lost its blocks already
                                del in_batch[request]
                                kv.free += blocks
                        engine.finishing, engine.stripped = [], 0
                        state.count_finished(len(finishing), now_s)
                if first or engine.planned_first:
                    engine.in_flight_first, engine.planned_first = engine.planned_first, []
                if steps > 1:  # the blocks of the steps after the first
                    cycles, rest = divmod(steps - 1, size)
                    kv.free -= cycles * count
                    if rest:
                        begin = (engine.step + 1) % size
                        end = begin + rest
                        kv.free -= sum(bins[begin:end])
                        if end > size:
                            kv.free -= sum(bins[: end - size])
                    engine.step += steps - 1
            else:
                first, finished = engine.commit(steps if planned else 0, now_s)
                if first or finished:
                    state.deliver(first, finished, first_s if asynchronous else now_s, running, rows)
                    if finished:
                        state.count_finished(len(finished), now_s)
            for request in preempted:  # the token of the step in flight still came out
                requests.preempted_at_s[request] = first_s if asynchronous else start_s
            rows += 1
            in_flight, first_weight = (asynchronous, count) if planned else (False, 0)
            if last:
                break
        # --- the next step
        did_plan, asleep, step = True, False, engine.step + 1
        if heap and heap[0][0] < step:
            if light:
                engine.version += 1
                finishing = engine.finishing
                while heap and heap[0][0] < step:
                    last_step, request = heappop(heap)
                    base, _, _, own_rank = members.pop(request)
                    finishing.append((request, -(-(base + last_step + 1) // size)))
                    decodes.count -= 1
                    decodes.base_sum -= base
                    bins[-base % size] -= 1
                    if own_rank:
                        decodes.lora_count -= 1
                        decodes.rank_sum -= own_rank
                        adapter = adapter_of[request]
                        holders = active[adapter] - 1
                        if holders:
                            active[adapter] = holders
                        else:
                            slots.leave(adapter, now_s)
            else:
                engine.retire(step, now_s)
        count, need = decodes.count, bins[step % size]
        joining, simple = -1, light and need <= kv.free and engine.partial < 0
        if simple and waiting.size:
            simple = False
            if waiting.size == 1 and line:
                joining = line[0]
                prompt, adapter = prefill_tokens[joining], adapter_of[joining]
                if prompt <= max_tokens - count and len(in_batch) < max_num_seqs:
                    blocks = -(-prompt // size)
                    simple = need + blocks <= kv.free and (adapter in active or not slots.full or not adapter)
        if not simple:
            plan = engine.form_step(now_s)
            planned = plan is not None
            if plan is not None:
                (
                    prefills, count, context, tokens, num_requests, adapters, lora_tokens, rank, changed, loads,
                    repeat, emitted, skipped, *_,
                ) = plan  # fmt: skip
        elif count or joining >= 0:
            planned, emitted, skipped = True, 1.0, 0
            kv.free -= need
            engine.step = step
            context = decodes.base_sum + step * count
            lora_tokens, rank_tokens = decodes.lora_count, decodes.rank_sum
            if joining >= 0:  # as the scheduler admits it
                line.popleft()
                waiting.size = 0
                kv.free -= blocks
                in_batch[joining] = None
                if admitted_s[joining] != admitted_s[joining]:
                    admitted_s[joining] = now_s
                loads, own_rank = (), rank_of[joining]
                base, last_step = prompt - step - 1, step + output_tokens[joining] - emitted_tokens[joining] - 1
                members[joining] = base, last_step, step, own_rank
                decodes.count += 1
                decodes.base_sum += base
                bins[-base % size] += 1
                heappush(heap, (last_step, joining))
                if own_rank:
                    decodes.lora_count += 1
                    decodes.rank_sum += own_rank
                    lora_tokens += prompt
                    rank_tokens += prompt * own_rank
                    tier = slots.join(adapter, now_s)
                    if tier != GPU:
                        loads = engine.loads_for(joining, tier)
                engine.planned_first.append(joining)
                engine.admitted_all()
                prefills, tokens, num_requests = (record(Prefill, (joining, 0, prompt)),), count + prompt, count + 1
                changed, repeat = True, 1
            else:
                prefills, loads, tokens, num_requests = (), (), count, count
                changed, engine.planned_version = engine.version != engine.planned_version, engine.version
                repeat = heap[0][0] - step + 1
                if count * (repeat // size + 1) > kv.free:
                    repeat = min(repeat, 1 + decodes.steps_within(step + 1, kv.free))
            adapters, rank, preempted = len(active), slot_rank, NOBODY
        else:
            planned, preempted = False, NOBODY
        # --- its price, and how long a run of such steps lasts
        start = 0
        if not planned:
            count = context = tokens = adapters = lora_tokens = rank = 0
            prefills, repeat = (), 1
            if in_flight:
                e_first_s = now_s + (e_residual_s + slope_s * (to - 1))
            elif engine.wake_s < NEVER_S and waiting.size:
                e_first_s, asleep = engine.wake_s, True
            else:
                busy, next_s = False, engine.wake_s
                if single:
                    break
                continue
            e_start_s, e_gap_s, e_slope_s, e_steps, e_residual_s, e_version = now_s, 0.0, 0.0, 1, 0.0, -1
            host_s, again_s, load_s, base_s, attention_s, lora_s, collective_s, slope_s, outside = NO_PRICE
        elif busy and engine.version == e_version and to < e_steps:
            start = to
        else:
            residual_s = e_residual_s + slope_s * (to - 1) if in_flight else 0.0
            if prices is None:
                assert plan is not None
                (
                    host_s, load_s, base_s, attention_s, lora_s, collective_s, slope_s, launch_bound, tail_s, valid,
                    outside, sync_s, again_s,
                ) = state.latency.price(plan)  # fmt: skip
            else:
                key = (tokens, num_requests, adapters, lora_tokens, not prefills, changed)
                fixed = fixed_s.get(key)
                if fixed is None:
                    fixed = fixed_s[key] = price_fixed(key)
                host_s, sync_s, launch_s, again_s, base_s, lora_s, collective_s, outside = fixed
                attention_s = context * context_token_s + count * request_s
                load_s, slope_s, tail_s, valid = 0.0, 0.0, least_tail_s, 1
                if prefills:
                    pairs = 0.0
                    for _, computed, new in prefills:
                        pairs += new * (computed + 0.5 * (new + 1))
                    attention_s += pairs * pair_s
                    for _, own_rank, tier in loads:
                        load_s += load_of(own_rank, tier)
                else:
                    slope_s, valid = count * emitted * context_token_s, repeat
                if context > largest:
                    outside = stretched
                if skipped:
                    host_s += skipped * skip_s
                    again_s += skipped * skip_s
                launch_bound = launch_s > 0.0
                if launch_bound:  # the GPU starts with the first launch; what it needs longer is the tail
                    longer_s = base_s + attention_s + lora_s + collective_s - launch_s
                    if longer_s > tail_s:
                        tail_s = longer_s
            if loads:
                for request, (_, own_rank, tier) in zip(engine.loading, loads, strict=True):
                    requests.load_s[request] += state.latency.load_s(own_rank, tier)
            gpu_s = base_s + attention_s + lora_s + collective_s
            if not asynchronous:
                gap_s, e_gap_s, e_slope_s, e_steps, e_residual_s = alternate(
                    host_s, load_s, gpu_s, slope_s, launch_bound, tail_s, valid, sync_s, again_s
                )
            elif launch_bound or gpu_s < again_s or again_s < 0:
                gap_s, e_gap_s, e_slope_s, e_steps, e_residual_s = plan_ahead(
                    residual_s, host_s, load_s, gpu_s, slope_s, launch_bound, tail_s, valid, sync_s, again_s
                )
            else:  # as plan_ahead has it where the GPU paces the steps
                gap_s = host_s + load_s
                gap_s = (residual_s if residual_s > gap_s else gap_s) + sync_s
                e_gap_s, e_slope_s, e_steps, e_residual_s = gpu_s, slope_s, valid, gpu_s
            e_start_s, e_first_s, e_version = now_s, now_s + gap_s, -1 if prefills else engine.version
            if again_s < 0:
                again_s = host_s
            host_s += sync_s
        # --- the run begins
        left = e_steps - start
        to = start + (1 if not coalesce else repeat if repeat < left else left)
        if engine.wake_s < NEVER_S and to > start + 1:  # the first plan at or after that time may differ
            to = min(to, max(start + 1, index_at(e_start_s, e_first_s, e_gap_s, e_slope_s, engine.wake_s)))
        done = to - 1
        next_s = e_first_s + done * e_gap_s + e_slope_s * (done * (done - 1) / 2) if done else e_first_s
        busy, start_s, running, used_blocks = True, now_s, len(in_batch) + engine.stripped, kv.total - kv.free
        num_prefills, new_tokens = len(prefills), tokens - count * tokens_per_decode
        by_reason = engine.waiting_by_reason() if waiting.size else NOBODY_WAITS
        new_preemptions = 0
        if not simple:
            preempted, rank_tokens = engine.preempted, engine.rank_tokens
            new_preemptions, preemptions = engine.preemptions - preemptions, engine.preemptions
        padded = lora_tokens * rank
        waste = (padded - rank_tokens) / padded if padded else 0.0
        if single:
            break
    state.now_s, state.next_s, state.taken = now_s, next_s, taken
    state.epoch = e_start_s, e_first_s, e_gap_s, e_slope_s
    state.e_steps, state.e_residual_s, state.priced_version = e_steps, e_residual_s, e_version
    state.step_price = host_s, again_s, load_s, base_s, attention_s, lora_s, collective_s, slope_s, outside
    state.busy, state.planned, state.in_flight, state.first_weight = busy, planned, in_flight, first_weight
    state.start, state.end, state.run_start_s, state.running = start, to, start_s, running
    state.decode_count, state.preempted, state.plan, state.late, state.asleep = count, preempted, plan, late, asleep
    state.preemptions = preemptions
    if taken == arrivals:
        inbox.clear()
        in_s.clear()
        state.taken = 0
    state.row_values = num_prefills, new_tokens, context, by_reason, adapters, used_blocks, waste, new_preemptions
    return did_plan
