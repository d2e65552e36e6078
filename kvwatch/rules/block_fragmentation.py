"""Blocks in use are mostly empty.

**What it means.** KV is allocated in blocks or pages; with large ones and short sequences most of each last block is wasted.

**How to tell.** Proven only where the engine counts tokens beside blocks (SGLang with pages larger than one token). vLLM counts blocks only: there it
can be excluded, and otherwise stays unknown.
"""

from kvwatch.rules.kinds import Do, Rule, Say
from kvwatch.signals import scheduler

RULE = Rule(
    id="block-fragmentation",
    severity="info",
    hold=60,
    when=(scheduler.block_fill < 0.5,),
    title="The blocks in use are mostly empty",
    explanation=(Say("The blocks in use hold {block_fill_ratio} of the tokens they could."),),
    remedy=(
        Do("use a smaller --block-size", "less is wasted at the end of each sequence", engine="vllm"),
        Do("use a smaller --page-size", "less is wasted at the end of each sequence", engine="sglang"),
    ),
    page=__doc__ or "",
)
