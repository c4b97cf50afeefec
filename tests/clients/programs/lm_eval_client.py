"""lm-eval's local-completions client on a task of a few documents: scoring by echo and log probabilities, and generation.

ROWS (JSON lines of question, choices, gold) are the documents. Writes what it found into FOLDER as JSON, by whether prompts were sent
as token ids (its default) or as texts: the accuracy, the log likelihood of each continuation, what was generated.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager

url, model, rows, folder = sys.argv[1:]
home = Path(folder)
shared = f"""
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
doc_to_text: "{{{{question}}}}"
"""
(home / "choose.yaml").write_text(f"""
task: choose
output_type: multiple_choice
doc_to_choice: choices
doc_to_target: gold
target_delimiter: ""
metric_list: [{{metric: acc}}]
{shared}""")
(home / "say.yaml").write_text(f"""
task: say
output_type: generate_until
doc_to_target: "{{{{choices[gold]}}}}"
generation_kwargs: {{until: ["\\n", "."], max_gen_toks: 8, temperature: 0}}
filter_list: [{{name: first, filter: [{{function: regex, regex_pattern: "(\\\\w+)"}}, {{function: take_first}}]}}]
metric_list: [{{metric: exact_match, ignore_case: true}}]
{shared}""")


def evaluate(*, as_ids: bool) -> dict[str, object]:
    found = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={
            "model": model, "base_url": f"{url}/v1/completions", "num_concurrent": 1, "max_retries": 1, "max_length": 512,
            "tokenizer_backend": "huggingface", "tokenizer": folder, "tokenized_requests": as_ids,
        },
        tasks=["choose", "say"],
        task_manager=TaskManager(include_path=folder, include_defaults=False),
        num_fewshot=0,
        bootstrap_iters=0,
        log_samples=True,
    )  # fmt: skip
    samples = found["samples"]
    return {
        "accuracy": found["results"]["choose"]["acc,none"],
        "likelihoods": [[float(one[0]) for one in sample["filtered_resps"]] for sample in samples["choose"]],
        "said": [sample["resps"][0][0] for sample in samples["say"]],
    }


(home / "found.json").write_text(json.dumps({"ids": evaluate(as_ids=True), "texts": evaluate(as_ids=False)}))
