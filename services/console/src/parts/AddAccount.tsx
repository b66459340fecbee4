import { type Schemas, SignalboxError } from "@signalbox/client";
import { useMutation, useQuery } from "@tanstack/react-query";
import { type FormEvent, useEffect, useRef, useState } from "react";
import { type Account, keyProblem, useAccounts, useRefreshAccounts } from "../accounts.ts";
import { unwrap, useWorkspace } from "../client.ts";
import { newKey } from "../insecure.ts";
import { providerName, sentence } from "../words.ts";
import css from "./AddAccount.module.css";
import { CopyButton } from "./CopyButton.tsx";
import { Button, Notice, Segments } from "./controls.tsx";
import { Dialog } from "./Dialog.tsx";
import { Outside, Waiting } from "./Elsewhere.tsx";
import { Field, Loaded, Refused } from "./page.tsx";

type Kind = Schemas["CreateLogin"]["kind"];
type Way = "key" | Kind;

const ways: Record<Way, string> = { key: "API key", browser: "Sign in", device: "Code on another device", paste: "Paste a code" };
const other = "other";

/** Adds an account of a provider, or signs in again to one. */
export function AddAccount({ again, onClose }: { again?: Account | undefined; onClose: () => void }) {
	const { client, workspace } = useWorkspace();
	const kinds = useQuery({
		queryKey: [workspace.id, "account-kinds"],
		queryFn: () => unwrap(client.api.GET("/api/accounts/kinds")),
	});
	return (
		<Dialog title={again ? `Sign in again: ${again.label || providerName(again.provider)}` : "Add an account"} onClose={onClose}>
			<Loaded query={kinds}>{(k) => <Choose kinds={k} again={again} onClose={onClose} />}</Loaded>
		</Dialog>
	);
}

function Choose({ kinds, again, onClose }: { kinds: Schemas["AccountKinds"]; again: Account | undefined; onClose: () => void }) {
	const [provider, setProvider] = useState(again?.provider ?? kinds.providers[0] ?? other);
	const login = kinds.logins.find((l) => (again?.grant ? l.name === again.grant.provider : l.provider === provider));
	const offered: Way[] = [...(again ? [] : (["key"] as const)), ...(login?.kinds ?? [])];
	const [chosen, setWay] = useState<Way>(again ? "browser" : "key");
	const way = offered.includes(chosen) ? chosen : (offered[0] ?? "key");
	return (
		<>
			{!again && (
				<Field label="Provider">
					{(c) => (
						<select {...c} value={provider} onChange={(e) => setProvider(e.target.value)}>
							{[...new Set([...kinds.providers, ...kinds.logins.map((l) => l.provider)])].map((p) => (
								<option key={p} value={p}>
									{providerName(p)}
								</option>
							))}
							<option value={other}>Another, by its address</option>
						</select>
					)}
				</Field>
			)}
			{offered.length > 1 && (
				<div>
					<Segments label="Way" value={way} options={offered.map((value) => ({ value, text: ways[value] }))} onChange={setWay} />
				</div>
			)}
			{way === "key" ? (
				<ByKey key={provider} provider={provider} profiles={kinds.profiles} onClose={onClose} />
			) : login?.reason ? (
				<Notice tone="note">{sentence(login.reason)}</Notice>
			) : login ? (
				<ByLogin key={`${login.name} ${way}`} name={login.name} kind={way} again={again} onClose={onClose} />
			) : (
				<Notice tone="note">This provider has no sign-in. Add a key of it instead.</Notice>
			)}
			<p className="text-small text-ink-3">
				{way === "key" && "The provider is asked whether it accepts the key, at no cost. "}
				The credential is sealed with this workspace’s key. No person and no agent can read it again.
			</p>
		</>
	);
}

function ByKey({ provider, profiles, onClose }: { provider: string; profiles: readonly string[]; onClose: () => void }) {
	const { client } = useWorkspace();
	const refresh = useRefreshAccounts();
	const own = provider === other;
	const [name, setName] = useState("");
	const [profile, setProfile] = useState(profiles.includes("openai") ? "openai" : (profiles[0] ?? ""));
	const [address, setAddress] = useState("");
	const [key, setKey] = useState("");
	const [label, setLabel] = useState("");
	const [flat, setFlat] = useState(false);
	const [problems, setProblems] = useState<{ name?: string; address?: string; key?: string }>({});
	// One account for the dialog, also if its answer is lost and the person presses again.
	const idempotency = useRef(newKey());
	const add = useMutation({
		mutationFn: async (check: boolean) => {
			const { account } = await unwrap(
				client.api.POST("/api/accounts", {
					params: { header: { "Idempotency-Key": idempotency.current } },
					body: {
						provider: own ? name.trim() : provider,
						secret: key.trim(),
						check,
						...(label.trim() ? { label: label.trim() } : {}),
						...(flat ? { flat_rate: true } : {}),
						...(own ? { profile, base_url: address.trim() } : {}),
					},
				}),
			);
			setKey("");
			await refresh();
			return account as Account;
		},
		onSuccess: () => onClose(),
		onError: () => (idempotency.current = newKey()),
	});
	const unaccepted = add.error instanceof SignalboxError && add.error.code === "KEY_NOT_ACCEPTED";
	const submit = (e: FormEvent) => {
		e.preventDefault();
		const wrong = {
			...(own && !/^[a-z][a-z0-9-]{0,31}$/.test(name.trim()) ? { name: "Lower-case letters, digits and dashes, such as my-proxy." } : {}),
			...(own && !/^https?:\/\/[^\s/]+/.test(address.trim()) ? { address: "An address begins with https://" } : {}),
			...(keyProblem(key, own ? name.trim() : provider) ? { key: keyProblem(key, own ? name.trim() : provider) } : {}),
		};
		setProblems(wrong);
		if (Object.keys(wrong).length === 0) add.mutate(true);
	};
	return (
		<form className="grid gap-4" onSubmit={submit} noValidate autoComplete="off">
			{own && (
				<>
					<Field label="Name" problem={problems.name} hint="What sessions call this provider.">
						{(c) => <input {...c} value={name} onChange={(e) => setName(e.target.value)} maxLength={32} spellCheck={false} />}
					</Field>
					<Field label="Address" problem={problems.address}>
						{(c) => (
							<input
								{...c}
								type="url"
								value={address}
								onChange={(e) => setAddress(e.target.value)}
								maxLength={2000}
								placeholder="https://"
							/>
						)}
					</Field>
					<Field label="It speaks like">
						{(c) => (
							<select {...c} value={profile} onChange={(e) => setProfile(e.target.value)}>
								{profiles.map((p) => (
									<option key={p}>{p}</option>
								))}
							</select>
						)}
					</Field>
				</>
			)}
			<Field label="API key" problem={problems.key}>
				{(c) => <input {...c} type="password" value={key} onChange={(e) => setKey(e.target.value)} autoComplete="off" spellCheck={false} />}
			</Field>
			<Field label="Label" hint="To tell it from others, such as “team key”.">
				{(c) => <input {...c} value={label} onChange={(e) => setLabel(e.target.value)} maxLength={100} />}
			</Field>
			<label className="flex items-center gap-2">
				<input type="checkbox" checked={flat} onChange={(e) => setFlat(e.target.checked)} className={css.tick} />
				It has a flat rate: requests cost nothing
			</label>
			<Refused error={add.error} />
			<div className="flex justify-end gap-2">
				<Button onClick={onClose}>Cancel</Button>
				{unaccepted && (
					<Button busy={add.isPending && !add.variables} onClick={() => add.mutate(false)}>
						Add it anyway
					</Button>
				)}
				<Button type="submit" look="primary" busy={add.isPending && add.variables}>
					Add {own ? "account" : providerName(provider)}
				</Button>
			</div>
		</form>
	);
}

function ByLogin({ name, kind, again, onClose }: { name: string; kind: Kind; again: Account | undefined; onClose: () => void }) {
	const { client } = useWorkspace();
	const start = useMutation({
		mutationFn: () =>
			unwrap(client.api.POST("/api/accounts/logins", { body: again ? { kind, account_id: again.id } : { kind, provider: name } })).then(
				(b) => b.login,
			),
	});
	const { mutate } = start;
	const expired = start.data ? Date.parse(start.data.expires_at) : undefined;
	const [over, setOver] = useState(false);
	useEffect(() => {
		if (expired === undefined) return;
		setOver(false);
		const t = setTimeout(() => setOver(true), expired - Date.now());
		return () => clearTimeout(t);
	}, [expired]);
	if (!start.data || over)
		return (
			<div className="grid gap-3">
				<p className="text-ink-2">
					{over
						? "The time for this sign-in is over. Nothing was changed."
						: kind === "device"
							? `You get a code, and type it at ${providerName(name)} on any device where you are signed in.`
							: `${providerName(name)} asks whether Signalbox may use your account.`}
				</p>
				<Refused error={start.error} />
				<div className="flex justify-end">
					<Button look="primary" busy={start.isPending} onClick={() => mutate()}>
						{over ? "Begin again" : kind === "device" ? "Get a code" : `Sign in to ${providerName(name)}`}
					</Button>
				</div>
			</div>
		);
	const login = start.data;
	return kind === "device" ? (
		<Device login={login} onClose={onClose} />
	) : kind === "paste" ? (
		<Paste login={login} name={name} onClose={onClose} />
	) : (
		<Elsewhere login={login} name={name} again={again} onClose={onClose} />
	);
}

/** A code that is typed on any device; the server is asked whether it was. */
function Device({ login, onClose }: { login: Schemas["Login"]; onClose: () => void }) {
	const { client } = useWorkspace();
	const refresh = useRefreshAccounts();
	const done = useRef(onClose);
	done.current = onClose;
	const poll = useQuery({
		queryKey: ["login", login.id],
		queryFn: async () => {
			const p = await unwrap(client.api.POST("/api/accounts/logins/{id}/poll", { params: { path: { id: login.id } } }));
			if (p.account) {
				await refresh();
				done.current();
			}
			return p;
		},
		refetchInterval: (q) =>
			q.state.data?.account || q.state.error ? false : 1000 * (q.state.data?.poll_seconds ?? login.poll_seconds ?? 5),
		initialData: { poll_seconds: login.poll_seconds },
		initialDataUpdatedAt: Date.now(),
		staleTime: 1000 * (login.poll_seconds ?? 5),
		gcTime: 0,
	});
	return (
		<div className="grid gap-4">
			<p className="text-ink-2">
				Open <Outside href={login.url_with_code ?? login.url}>{new URL(login.url).host + new URL(login.url).pathname}</Outside> on any
				device where you are signed in, and type:
			</p>
			<p className={css.code}>
				<output>{login.user_code}</output>
				<CopyButton text={login.user_code ?? ""} look="quiet">
					Copy code
				</CopyButton>
			</p>
			<Refused error={poll.error} />
			{!poll.error && <Waiting until={login.expires_at} text="Waiting for you there." />}
		</div>
	);
}

/** A code that the provider shows, and that is pasted here. */
function Paste({ login, name, onClose }: { login: Schemas["Login"]; name: string; onClose: () => void }) {
	const { client } = useWorkspace();
	const refresh = useRefreshAccounts();
	const [code, setCode] = useState("");
	const [problem, setProblem] = useState("");
	const complete = useMutation({
		mutationFn: () =>
			unwrap(client.api.POST("/api/accounts/logins/{id}/complete", { params: { path: { id: login.id } }, body: { code: code.trim() } })),
		onSuccess: () => refresh().then(onClose),
	});
	return (
		<form
			className="grid gap-4"
			noValidate
			onSubmit={(e) => {
				e.preventDefault();
				setProblem(code.trim() ? "" : "Paste the code that the page shows at the end.");
				if (code.trim()) complete.mutate();
			}}
		>
			<p className="text-ink-2">
				Open <Outside href={login.url}>{`${providerName(name)}’s sign-in`}</Outside>, allow it, and paste the code here.
			</p>
			<Field label="Code" problem={problem}>
				{(c) => (
					<input {...c} value={code} onChange={(e) => setCode(e.target.value)} maxLength={4000} autoComplete="off" spellCheck={false} />
				)}
			</Field>
			<Refused error={complete.error} />
			<Waiting until={login.expires_at} text="Waiting for the code." />
			<div className="flex justify-end">
				<Button type="submit" look="primary" busy={complete.isPending}>
					Sign in
				</Button>
			</div>
		</form>
	);
}

/** A sign-in in another tab, which the server completes; the list of accounts shows when. */
function Elsewhere({
	login,
	name,
	again,
	onClose,
}: {
	login: Schemas["Login"];
	name: string;
	again: Account | undefined;
	onClose: () => void;
}) {
	const known = useRef<Map<string, string>>(undefined);
	const accounts = useAccounts();
	const refresh = useRefreshAccounts();
	const { refetch } = accounts;
	useEffect(() => {
		const t = setInterval(() => void refetch(), 2000);
		return () => clearInterval(t);
	}, [refetch]);
	useEffect(() => {
		if (!accounts.data) return;
		const signedIn = new Map(
			accounts.data.accounts
				.filter((a) => a.grant?.provider === name && a.grant.state === "active")
				.map((a) => [a.id, a.grant?.issued_at ?? ""]),
		);
		known.current ??= signedIn;
		const fresh = [...signedIn].some(([id, at]) => (again ? id === again.id : true) && known.current?.get(id) !== at);
		if (fresh) void refresh().then(onClose);
	}, [accounts.data, name, again, onClose, refresh]);
	return (
		<div className="grid gap-4">
			<p>
				<Outside href={login.url}>{`Go on at ${providerName(name)}`}</Outside>
			</p>
			<p className="text-ink-2">It opens in a new tab. This page notices when you are done there.</p>
			<Waiting until={login.expires_at} text="Waiting for you there." />
		</div>
	);
}
