"""The report for people, in the manner of a real compile_report.txt."""

from cerebras_contract.reports import Report


def report_text(report: Report) -> str:
    """The whole of report.txt."""
    memory = report.memory
    lines = [
        f"Compile report for {report.artifact_key}",
        "",
        f"System                    {report.system}, {report.mode.words}",
        f"Batch size                {report.batch_size} ({report.micro_batch} a micro-batch)",
        f"Parameters                {report.parameters:,}",
        f"Samples/s                 {report.samples_per_second:,.1f}",
        f"Compute Samples/s         {report.compute_samples_per_second:,.1f}",
        f"Transmission Samples/s    {report.transmission_samples_per_second:,.1f}",
        f"Active PEs                {report.active_pes:,}",
        f"Compute Utilization       {report.compute_utilization:.4%}",
        "",
        f"Weights                   {readable_size(memory.weights_bytes)}",
        f"Optimizer state           {readable_size(memory.optimizer_state_bytes)}",
        f"Activations on the wafer  {readable_size(memory.activations_bytes)}"
        f" of {memory.wafer_sram_bytes / 1e9:.1f} GB SRAM",
        "",
        f"{'Layer':<28}{'time':>12}{'utilization':>14}{'weights':>12}{'output':>12}{'off-wafer':>12}  bound",
    ]
    lines += [
        f"{row.name:<28}{row.seconds * 1e3:>9.3f} ms{row.utilization:>14.4%}{readable_size(row.weight_bytes):>12}"
        f"{readable_size(row.output_bytes):>12}{readable_size(row.off_wafer_bytes):>12}  {row.bound}"
        for row in report.layers
    ]
    lines += [
        "",
        report.trust.statement,
        "Device time is simulated; training itself is computed on this machine's processor.",
    ]
    return "\n".join(lines) + "\n"


def readable_size(count_bytes: int) -> str:
    """Bytes in the largest decimal unit that leaves a number above 1."""
    size, units = float(count_bytes), ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:,.0f} {units[0]}" if units[0] == "B" else f"{size:,.2f} {units[0]}"
