import type { Schemas } from "@signalbox/client";

/** Another claim went on with the run, without anybody having been waited for. */
export interface TakenOver<Time> {
	/** The last sign of the claim before, and the first of the new one. */
	lost: Time;
	back: Time;
	claim: number;
	/** The claim before. */
	from: number;
	/** The step that was said again, if one was. */
	again: number | undefined;
}

export function takeovers(trace: Pick<Schemas["RunTrace"], "moments"> | undefined): TakenOver<string>[] {
	const found: TakenOver<string>[] = [];
	const moments = trace?.moments ?? [];
	moments.forEach((m, i) => {
		const last = moments[i - 1];
		if (!last || m.claim <= last.claim || last.claim === 0 || last.kind === "parked") return;
		// A claim begins with what the log lacks, and says then what is void.
		const said = moments.slice(i).find((x) => x.claim !== m.claim || x.kind === "step-retry" || x.kind.endsWith("-delta"));
		const again = said?.claim === m.claim && said.kind === "step-retry" ? said.step_index : undefined;
		found.push({ lost: last.until ?? last.time, back: m.time, claim: m.claim, from: last.claim, again });
	});
	return found;
}
