"""A host tier is configured, but how full it is cannot be known.

**What it means.** Its series are not exported, or they mean something else: vLLM's offload gauge counts only blocks pinned by transfers, so it
reads about 0 on a full tier. kvwatch then says nothing about L2 rather than calling it idle.

**What to do first.** Make it observable: each target lists what is missing and what would bring it.
"""

from kvwatch.rules.kinds import Do, Rule, Say
from kvwatch.signals import l2

RULE = Rule(
    id="l2-unobservable",
    severity="info",
    hold=0,
    when=(l2.unobservable,),
    title="The host tier (L2) is configured, but its occupancy cannot be known",
    explanation=(Say("What is known leaves L2 anywhere within {l2_resident_ratio} of its capacity."),),
    remedy=(
        Do("with vLLM's own offloading, publish KV events (--kv-events-config) and let kvwatch subscribe",
           "its occupancy is told only there", engine="vllm", tiers=("native-offload", "simple-offload")),
        Do("with LMCache in the engine, start that with PROMETHEUS_MULTIPROC_DIR set to an empty directory",
           "without it LMCache's series never leave the worker process", tiers=("lmcache",)),
        Do("with LMCache in the engine, give the tier's size as l2.capacity in kvwatch's configuration", "LMCache does not export it",
           tiers=("lmcache",)),
        Do("with an LMCache server, make it a target (http://HOST:8080, started with --http-host) and tie it to this engine with l2.from",
           "its pool is a target of its own", engine="vllm", tiers=("lmcache-server",)),
        Do("with an LMCache server, make it a target (http://HOST:8080, started with --http-host) and tie it to this engine with l2.from",
           "its pool is a target of its own", engine="sglang", tiers=("lmcache-server",)),
        Do("with HiCache, update SGLang", "older releases do not tell how full its host pool is", engine="sglang", tiers=("hicache",)),
        Do("update the LMCache server to 0.4.7 or later", "older ones do not tell how full they are", engine="lmcache"),
    ),
    page=__doc__ or "",
)  # fmt: skip
