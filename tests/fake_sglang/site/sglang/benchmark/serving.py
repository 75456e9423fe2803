"""A fake ``python -m sglang.benchmark.serving``: rows by the formulas of 0.5.20, of requests that are all alike."""

from __future__ import annotations

import math
import statistics
from typing import Any

from sglang.benchmark.datasets.sharegpt import sample_sharegpt_requests
from sglang.benchmark.fakeclient import begun, parser_of, post
from sglang.benchmark.utils import get_tokenizer


def main() -> None:
    """The traffic of one run."""
    args = parser_of("serving").parse_args()
    run = begun(f"n{args.num_prompts}", args.base_url, args.seed)
    rows = sample_sharegpt_requests(args.dataset_path, args.num_prompts, get_tokenizer(args.tokenizer))
    run.misbehave()
    if run.mode == "fewer":
        rows = rows[:-1]
    given, outputs = [row.prompt_len for row in rows], [row.output_len for row in rows]
    if run.mode == "few-tokens":
        outputs[0] -= 1
    duration = (sum(given) + sum(outputs)) / run.speed
    # The first token after a tenth of the window, the last at nine tenths; a request's end mark comes at once.
    ttfts = [duration * 0.1] * len(rows)
    gaps = [[duration * 0.8 / (count - 1)] * (count - 1) for count in outputs]
    ends = [ttft + sum(one) for ttft, one in zip(ttfts, gaps, strict=True)]
    row: dict[str, Any] = {
        "backend": "sglang",
        "dataset_name": "sharegpt",
        "request_rate": math.inf if args.request_rate in (None, "inf", math.inf) else float(args.request_rate),
        "max_concurrency": args.max_concurrency,
        "duration": duration,
        "completed": len(rows),
        "total_input_tokens": sum(given),
        "total_input_text_tokens": sum(given),
        "total_input_vision_tokens": 0,
        "total_output_tokens": sum(outputs),
        "total_output_tokens_retokenized": sum(outputs),
        "request_throughput": len(rows) / duration,
        "input_throughput": sum(given) / duration,
        "output_throughput": sum(outputs) / duration,
        "total_throughput": (sum(given) + sum(outputs)) / duration,
        "concurrency": sum(ends) / duration,
        "accept_length": None,
        "server_info": post(args.base_url + "/server_info"),
    }
    if run.mode == "foreign-row":
        row["server_info"]["served_model_name"] = "somebody-elses"
    tpots = [(end - ttft) / (count - 1) for end, ttft, count in zip(ends, ttfts, outputs, strict=True)]
    series = {"ttft": ttfts, "tpot": tpots, "itl": [gap for one in gaps for gap in one], "e2e_latency": ends}
    for name, values in series.items():
        row[f"mean_{name}_ms"] = statistics.fmean(values) * 1000
        row[f"median_{name}_ms"] = statistics.median(values) * 1000
        row[f"std_{name}_ms"] = statistics.pstdev(values) * 1000
        cuts = statistics.quantiles(values, n=100, method="inclusive") if len(values) > 1 else values * 99
        row |= {f"p{at}_{name}_ms": cuts[at - 1] * 1000 for at in (90, 95, 99)}
    if args.output_details:
        row |= {"input_lens": given, "output_lens": outputs, "ttfts": ttfts, "itls": gaps}
        row |= {"errors": [""] * len(rows), "generated_texts": ["word"] * len(rows)}
    run.write(args.output_file, row)


if __name__ == "__main__":
    main()
