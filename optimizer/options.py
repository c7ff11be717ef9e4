"""Options of a request, the same for Python, the command line and REST."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from graphs.errors import InvalidOption
from graphs.machine import cores_visible
from graphs.wording import counted

Exactness = Literal["exact", "rounding", "finite", "approximate"]
Stages = Literal["normalize", "greedy", "nodes", "neighbourhoods", "all"]
SPELLED = {"dims": "dim", "fix_dims": "fix_dim", "buckets": "buckets"}  # options that are tables, in requests
Size = Annotated[int, Field(ge=1)]
THREADS_PER_CORE = 4  # with many more, runtimes spend their time on waking threads, and hang


class Options(BaseModel):
    """What `optimize` is asked for. Names are those of the command line with `-` as `_`."""

    model_config = ConfigDict(extra="forbid")
    kind: ClassVar[str] = "optimize"  # of the job; also the command's name

    target: str = Field("auto", description="runtime:device, or auto")
    precision: Exactness = Field("rounding", description="the weakest exactness class that may be used")
    objective: Literal["time", "nodes", "memory"] = "time"
    effort: Literal["low", "normal", "high"] = "normal"
    timeout: float | None = Field(None, gt=0, allow_inf_nan=False,
                                  description="seconds; an emergency brake, the best so far is returned")
    opset: int | None = Field(None, ge=1, description="write at this version of the default operator set")
    inputs: str | None = Field(None, description="an .npz file with one array per input, to measure and validate with")
    rtol: float | None = Field(None, ge=0, allow_inf_nan=False)
    atol: float | None = Field(None, ge=0, allow_inf_nan=False)
    dims: dict[str, list[int]] = Field(default_factory=dict, description="sizes to measure symbolic dimensions at")
    fix_dims: dict[str, Size] = Field(default_factory=dict,
                                      description="dimensions to make constant; the result takes no other sizes")
    buckets: dict[str, Annotated[list[Size], Field(min_length=1)]] = Field(
        default_factory=dict, description="sizes to specialise for; a guard in the result chooses at run time")
    bucket_form: Literal["file", "manifest"] = Field("file", description="buckets in one file, or in several that a "
                                                                         "manifest names")
    memory_limit: str | None = Field(None, pattern=r"^\d+(\.\d+)?%$|^\d+$", description="bytes, or a share of what the "
                                     "model takes: recompute values so that no more intermediate ones live at a time")
    threads: int | None = Field(None, ge=1, description="threads of the runtime, at most 4 for each core")
    disabled_rules: list[str] = Field(default_factory=list)
    keep: list[str] = Field(default_factory=list, description="names of nodes that must stay as they are")
    contrib: bool = Field(False, description="allow contrib operators of ONNX Runtime")
    strict: bool = False
    timings: str | None = Field(None, description="path of the timing database")
    frozen: bool = Field(False, description="a miss in the timing database is an error")
    fresh: bool = Field(False, description="search and measure anew, also where the result of an earlier run is known")
    seed: int = Field(0, ge=0, lt=1 << 63)
    stages: Stages = Field("all", description="for ablations: all but `all` hands back what it finds without measuring "
                                              "it whole; greedy: rules one after the other, without an e-graph; nodes: "
                                              "an e-graph and the times of single nodes")


def check_threads(options: Options) -> None:
    """Raise InvalidOption where this machine cannot sensibly run so many threads."""
    cores = cores_visible()
    most = THREADS_PER_CORE * cores
    if options.threads is not None and options.threads > most:
        raise InvalidOption(f"--threads {options.threads}",
                            f"the limit here is {most}: {THREADS_PER_CORE} for each of {counted(cores, 'core')}",
                            f"give 1 to {most}, or leave it out")
