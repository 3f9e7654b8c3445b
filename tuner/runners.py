"""Names of what can time candidates; apart from the code, which the command's start need not wait for."""

IN_PROCESS = "in-process"
BENCHMARK_MODULE = "iree-benchmark-module"

RUNNERS = (IN_PROCESS, BENCHMARK_MODULE)
