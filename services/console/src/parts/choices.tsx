import type { Schemas } from "@signalbox/client";
import { useQuery } from "@tanstack/react-query";
import { Bot, Cpu, Plug } from "lucide-react";
import { unwrap, useWorkspace } from "../client.ts";
import { useTools } from "../tools.ts";
import { toolWords } from "../words.ts";
import type { Suggestion } from "./Composer.tsx";
import { Choice, Menu } from "./Menu.tsx";

/** The models that the workspace can call, and why others are missing. */
export function useModels() {
	const { client, workspace } = useWorkspace();
	return useQuery({
		queryKey: [workspace.id, "models"],
		queryFn: () => unwrap(client.api.GET("/api/models")),
		staleTime: 60_000,
	});
}

/** The kinds of agents. */
export function usePresets() {
	const { client, workspace } = useWorkspace();
	return useQuery({
		queryKey: [workspace.id, "presets"],
		queryFn: () => unwrap(client.api.GET("/api/presets")).then((b) => b.presets as Schemas["Preset"][]),
		staleTime: 60_000,
	});
}

export interface ModelChoice {
	model: string;
	provider: string;
}

/** The first model of another provider than the session's, of those whose accounts can be used. The simulator is none. */
export function otherModel(
	{ models, problems }: { models: readonly Schemas["Model"][]; problems: readonly { provider: string }[] } = { models: [], problems: [] },
	session: Partial<ModelChoice>,
): Schemas["Model"] | undefined {
	const at = session.provider ?? models.find((m) => m.default)?.provider;
	return models.find((m) => !m.simulated && m.provider !== at && !problems.some((p) => p.provider === m.provider));
}

/** Which model answers. */
export function ModelMenu({ value, onChoose }: { value: ModelChoice | undefined; onChoose: (m: ModelChoice) => void }) {
	const models = useModels().data;
	const all = models?.models ?? [];
	const at = value ? all.find((m) => m.id === value.model && m.provider === value.provider) : all.find((m) => m.default);
	const providers = [...new Set(all.map((m) => m.provider))];
	return (
		<Menu label="Model" icon={Cpu} text={at?.name ?? value?.model ?? "Default"}>
			{(close) => (
				<>
					{providers.map((p) => (
						<fieldset key={p}>
							<legend className="micro">{p}</legend>
							{all
								.filter((m) => m.provider === p)
								.map((m) => (
									<Choice
										key={m.id}
										chosen={m === at}
										text={m.name}
										about={aboutModel(m)}
										onChoose={() => {
											onChoose({ model: m.id, provider: m.provider });
											close();
										}}
									/>
								))}
						</fieldset>
					))}
					{models?.problems.map((p) => (
						<p key={p.provider}>
							{p.provider}: {p.reason}
						</p>
					))}
				</>
			)}
		</Menu>
	);
}

function aboutModel(m: Schemas["Model"]): string {
	if (m.simulated) return "Answers from a script; no model is called";
	const price = m.prices && `$${m.prices.input} in, $${m.prices.output} out for a million tokens`;
	return [price, m.context && `${Math.round(m.context / 1000)}k context`, m.abilities.images && "images"].filter(Boolean).join(" · ");
}

/** Which kind of agent answers. */
export function PresetMenu({ value, onChoose }: { value: string; onChoose: (name: string) => void }) {
	const presets = usePresets().data;
	return (
		<Menu label="Preset" icon={Bot} text={title(value || "workspace")}>
			{(close) =>
				presets?.map((p) => (
					<Choice
						key={p.name}
						chosen={p.name === (value || "workspace")}
						text={title(p.name)}
						about={`${p.tools.length} ${p.tools.length === 1 ? "tool" : "tools"}, at most ${p.max_steps} steps`}
						onChoose={() => {
							onChoose(p.name);
							close();
						}}
					/>
				))
			}
		</Menu>
	);
}

const title = (name: string) => name.charAt(0).toUpperCase() + name.slice(1);

const matches = (patterns: readonly string[], name: string) =>
	patterns.some((p) => (p.endsWith("*") ? name.startsWith(p.slice(0, -1)) : p === name));

/** The tools that a session has: each can be switched, and one that cannot be used now says why. */
export function ToolsMenu({ session, onChange }: { session: Schemas["Session"]; onChange: (tools: string[] | null) => void }) {
	const tools = useTools().data;
	const preset = usePresets().data?.find((p) => p.name === session.preset);
	if (!tools || !preset) return null;
	const patterns = session.tools ?? preset.tools;
	const has = (t: Schemas["Tool"]) => t.always || matches(patterns, t.name);
	const on = tools.filter(has);
	const usable = on.filter((t) => t.available).length;
	return (
		<Menu label="Tools" icon={Plug} text={`${title(session.preset)}, ${usable} ${usable === 1 ? "tool" : "tools"}`}>
			{() => (
				<>
					{session.tools && <Choice chosen={false} text="Back to the preset’s tools" onChoose={() => onChange(null)} />}
					{tools.map((t) => (
						<Choice
							key={t.name}
							chosen={has(t)}
							text={toolWords(t.name)}
							about={t.available ? (t.needs_approval ? "Asks you first" : undefined) : (t.unavailable_reason ?? "Not available now")}
							disabled={t.always}
							onChoose={() =>
								onChange(
									has(t)
										? on.filter((o) => o !== t && !o.always).map((o) => o.name)
										: [...on.filter((o) => !o.always), t].map((o) => o.name),
								)
							}
						/>
					))}
				</>
			)}
		</Menu>
	);
}

/** What @ offers: documents by name. With `onPreset`, / offers kinds of agents. */
export function useSuggest(onPreset?: (name: string) => void) {
	const { client } = useWorkspace();
	const presets = usePresets().data;
	return async (sign: "@" | "/", letters: string): Promise<Suggestion[]> => {
		if (sign === "/")
			return onPreset
				? (presets ?? [])
						.filter((p) => p.name.startsWith(letters.toLowerCase()))
						.map((p) => ({ text: `/${p.name}`, about: `${p.tools.length} tools`, becomes: () => onPreset(p.name) }))
				: [];
		const { documents } = await unwrap(
			client.api.GET("/api/documents", { params: { query: { limit: 8, ...(letters ? { q: letters } : {}) } } }),
		);
		return documents.map((d) => ({ text: d.name, about: "document", becomes: `“${d.name}” (document ${d.id})` }));
	};
}
