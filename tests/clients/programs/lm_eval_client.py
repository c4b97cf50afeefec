"""lm-eval's local-completions client on a task of three documents: scoring by echo and log probabilities, and generation.

Writes what it found as JSON: the accuracy, and the log likelihood of each continuation.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager

url, model, tokenizer, folder = sys.argv[1:]
rows = [
    {"question": "The capital of France is", "choices": [" Berlin", " Paris"], "gold": 1},
    {"question": "The capital of Germany is", "choices": [" Berlin", " Paris"], "gold": 0},
    {"question": "The opposite of hot is", "choices": [" cold", " Tuesday"], "gold": 0},
]
home = Path(folder)
(home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
shared = f"""
dataset_path: json
dataset_kwargs: {{data_files: {{test: {home / "rows.jsonl"}}}}}
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
arguments = {
    "model": model, "base_url": f"{url}/v1/completions", "num_concurrent": 1, "max_retries": 1, "tokenized_requests": False,
    "tokenizer_backend": "huggingface", "tokenizer": tokenizer, "max_length": 512,
}  # fmt: skip
found = lm_eval.simple_evaluate(
    model="local-completions",
    model_args=arguments,
    tasks=["choose", "say"],
    task_manager=TaskManager(include_path=str(home), include_defaults=False),
    num_fewshot=0,
    bootstrap_iters=0,
    log_samples=True,
)
likelihoods = [[float(one[0]) for one in sample["filtered_resps"]] for sample in found["samples"]["choose"]]
said = [sample["resps"][0][0] for sample in found["samples"]["say"]]
(home / "found.json").write_text(
    json.dumps({"accuracy": found["results"]["choose"]["acc,none"], "likelihoods": likelihoods, "said": said})
)
