"""The report for people, in the manner of a real compile_report.txt."""

from cerebras_contract.artifacts import Report


def report_text(report: Report) -> str:
    """The whole of report.txt."""
    memory = report.memory
    lines = [
        f"Compile report for {report.artifact_key}",
        "",
        f"System                    {report.system}, {report.mode.replace('_', ' ')}",
        f"Batch size                {report.batch_size} ({report.micro_batch} a micro-batch)",
        f"Parameters                {report.parameters:,}",
        f"Samples/s                 {report.samples_per_second:,.1f}",
        f"Compute Samples/s         {report.compute_samples_per_second:,.1f}",
        f"Transmission Samples/s    {report.transmission_samples_per_second:,.1f}",
        f"Active PEs                {report.active_pes:,}",
        f"Compute Utilization       {report.compute_utilization:.4%}",
        "",
        f"Weights                   {megabytes(memory.weights_bytes)}",
        f"Optimizer state           {megabytes(memory.optimizer_state_bytes)}",
        f"Activations on the wafer  {megabytes(memory.activations_bytes)}"
        f" of {memory.wafer_sram_bytes / 1e9:.1f} GB SRAM",
        "",
        f"{'Layer':<28}{'time':>12}{'utilization':>14}{'weights':>12}{'output':>12}{'off-wafer':>12}  bound",
    ]
    lines += [
        f"{row.name:<28}{row.seconds * 1e3:>9.3f} ms{row.utilization:>14.4%}{megabytes(row.weight_bytes):>12}"
        f"{megabytes(row.output_bytes):>12}{megabytes(row.off_wafer_bytes):>12}  {row.bound}"
        for row in report.layers
    ]
    lines += [
        "",
        report.trust,
        "Device time is simulated; training itself is computed on this machine's processor.",
    ]
    return "\n".join(lines) + "\n"


def megabytes(count_bytes: int) -> str:
    return f"{count_bytes / 1e6:,.2f} MB"
