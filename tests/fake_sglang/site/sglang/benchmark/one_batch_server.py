"""A fake ``python -m sglang.benchmark.one_batch_server``, with the rows and the words of 0.5.20."""

from __future__ import annotations

from sglang.benchmark.fakeclient import begun, parser_of


def main() -> None:
    """One batch."""
    args = parser_of("one_batch").parse_args()
    given_as = (args.batch_size, args.input_len, args.output_len)
    sizes = [int(one[0] if isinstance(one, list) else one) for one in given_as]
    batch, given, output = sizes
    run = begun("b{}-{}-{}".format(*sizes), args.base_url, args.seed)
    most = run.server["internal_states"][0]["effective_max_running_requests_per_dp"]
    if batch > most:
        print(
            f"========Skip benchmark batch_size={batch} > skip_max_running_requests_threshold={most} due to max "
            f"running requests limit.========"
        )
        print(f"\nResults are saved to {args.result_filename}")
        return
    run.misbehave()
    tokens, early = batch * output, 0
    if run.mode == "few-tokens":
        tokens, early = tokens - 3, 1
    latency = (batch * given + tokens) / run.speed
    first = round(latency * 0.25, 4)
    row = {
        "run_name": "another" if run.mode == "foreign-row" else args.run_name,
        "batch_size": batch + (run.mode == "other-case"),
        "input_len": given,
        "output_len": output,
        "latency": round(latency, 4),
        "input_throughput": round(batch * given / first, 2),
        "output_throughput": round(tokens / (latency - first), 2),
        "overall_throughput": round((batch * given + tokens) / latency, 2),
        "last_ttft": first,
        "last_gen_throughput": 0.0,
        "acc_length": -1.0,
        "total_output_tokens": tokens,
        "num_early_stopped": early,
        "steady_state_output_throughput": None,
        "steady_state_window_s": None,
        "cache_hit_rate": None,
    }
    run.write(args.result_filename, row)
    print(f"\nResults are saved to {args.result_filename}")


if __name__ == "__main__":
    main()
