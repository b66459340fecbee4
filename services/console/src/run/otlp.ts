/** A run as OpenTelemetry has it: the spans of its waterfall in OTLP JSON. */
import type { Details, Row, Waterfall } from "./waterfall.ts";

type Attribute = { key: string; value: { stringValue: string } | { intValue: string } };

/** OTLP's numbers of 64 bits are strings in JSON. */
const attributes = (known: Record<string, string | number | null | undefined>): Attribute[] =>
	Object.entries(known).flatMap(([key, v]) =>
		v === null || v === undefined || v === "" ? [] : [{ key, value: typeof v === "number" ? { intValue: String(v) } : { stringValue: v } }],
	);

const root = "0000000000000001";

/** The same row has the same id in each copy: step, kind and number. */
function spanId(row: Row): string {
	const [, kind = "", number = "0"] = /\.([ac])(\d+)$/.exec(row.key) ?? [];
	const hex = (n: number, digits: number) => n.toString(16).padStart(digits, "0");
	return `${hex(row.step + 1, 8)}${{ a: "01", c: "02" }[kind] ?? "00"}${hex(Number(number), 6)}`;
}

/** Makes a request of the OTLP exporter of a run, with the names of OpenTelemetry's conventions for generative AI. */
export function otlp({ run }: Details, fall: Waterfall): object {
	const nanos = (ms: number) => String(BigInt(Math.round((fall.origin + ms) * 1000)) * 1000n);
	const span = (of: {
		spanId: string;
		parentSpanId?: string;
		name: string;
		kind: 1 | 3; // internal, client
		from: number;
		/** Undefined for what has not ended. */
		to: number | undefined;
		failed: string | boolean;
		attributes: Attribute[];
	}) => ({
		traceId: run.id.replaceAll("-", ""),
		spanId: of.spanId,
		...(of.parentSpanId ? { parentSpanId: of.parentSpanId } : {}),
		name: of.name,
		kind: of.kind,
		startTimeUnixNano: nanos(of.from),
		...(of.to === undefined ? {} : { endTimeUnixNano: nanos(of.to) }),
		attributes: of.attributes,
		status: of.failed ? { code: 2, ...(typeof of.failed === "string" ? { message: of.failed } : {}) } : {},
	});
	const open = fall.rows.filter((r) => r.signal === "running" || r.signal === "waiting" || r.signal === "parked");
	const goesOn = (row: Row) => open.some((r) => r === row || (row.of.kind === "step" && r.step === row.step));
	const model = { "gen_ai.provider.name": run.provider, "gen_ai.request.model": run.model };
	const spans = [
		span({
			spanId: root,
			name: `run ${run.ordinal}`,
			kind: 1,
			from: 0,
			to: run.ended_at ? fall.length : undefined,
			failed: run.error ? run.error.message || run.error.code || true : false,
			attributes: attributes({
				"gen_ai.operation.name": "invoke_agent",
				"gen_ai.conversation.id": run.session_id,
				...model,
				"gen_ai.usage.input_tokens": run.usage.input_tokens,
				"gen_ai.usage.output_tokens": run.usage.output_tokens,
				"signalbox.run.id": run.id,
				"signalbox.run.state": run.state,
				"signalbox.cost_micros": run.simulated ? undefined : run.cost_micros,
			}),
		}),
	];
	for (const row of fall.rows) {
		const of = row.of;
		const counted = of.kind === "attempt" && row.tokens !== undefined ? of.step?.usage : undefined;
		const broken = of.kind === "attempt" ? (of.attempt?.void_reason ?? false) : false;
		spans.push(
			span({
				spanId: spanId(row),
				parentSpanId: of.kind === "step" ? root : spanId({ ...row, key: String(row.step) }),
				name: of.kind === "step" ? `step ${row.step + 1}` : of.kind === "call" ? `execute_tool ${of.call.tool_name}` : `chat ${run.model}`,
				kind: of.kind === "attempt" ? 3 : 1,
				from: Math.min(...row.spans.map((s) => s.from)),
				to: goesOn(row) ? undefined : Math.max(...row.spans.map((s) => s.to)),
				failed: of.kind === "call" ? row.signal === "failed" && (of.call.error_type ?? true) : broken,
				attributes: attributes({
					"signalbox.step": row.step,
					...(of.kind === "call"
						? {
								"gen_ai.operation.name": "execute_tool",
								"gen_ai.tool.name": of.call.tool_name,
								"gen_ai.tool.call.id": of.call.tool_call_id,
								"signalbox.tool.state": of.call.state,
							}
						: {}),
					...(of.kind === "attempt"
						? {
								"gen_ai.operation.name": "chat",
								...model,
								"gen_ai.usage.input_tokens": counted?.input_tokens,
								"gen_ai.usage.output_tokens": counted?.output_tokens,
								"signalbox.claim": of.attempt?.claim,
								"signalbox.cost_micros": row.costMicros,
							}
						: {}),
				}),
			}),
		);
	}
	return {
		resourceSpans: [
			{
				resource: { attributes: attributes({ "service.name": "signalbox" }) },
				scopeSpans: [{ scope: { name: "signalbox.dev/console" }, spans }],
			},
		],
	};
}
