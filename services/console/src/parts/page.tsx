import { SignalboxError } from "@signalbox/client";
import type { UseQueryResult } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { type ReactNode, useEffect, useId } from "react";
import { slugOf, useWorkspace, type Workspace } from "../client.ts";
import { Failed, useFailure } from "../routes/failed.tsx";
import { sentence } from "../words.ts";
import { Blank, Notice } from "./controls.tsx";
import css from "./page.module.css";

/** The parts that tables use by themselves. */
export const pageCss = css;

interface PageProps {
	title: string;
	about?: ReactNode;
	actions?: ReactNode;
	/** Those who may see the page; everybody if absent. */
	access?: "owner" | "editor";
	children: ReactNode;
}

/** A page with a heading, what it is about, and what can be done on it. */
export function Page({ title, about, actions, access, children }: PageProps) {
	const mine = useWorkspace().workspace.role;
	useEffect(() => {
		document.title = `${title} · Signalbox`;
	}, [title]);
	const may = access === undefined || mine === "owner" || access === mine;
	return (
		<div className="scroll">
			<div className="page">
				<header className={css.head}>
					<div>
						<h1 className="text-h2 font-bold">{title}</h1>
						{about && <p>{about}</p>}
					</div>
					{may && actions && <div className={css.actions}>{actions}</div>}
				</header>
				{may ? (
					children
				) : (
					<Blank line="broken" title="Not for your role">
						You are {mine === "editor" ? "an editor" : "a viewer"} here, and this is for{" "}
						{access === "owner" ? "owners" : "owners and editors"}. An owner can change your role.
					</Blank>
				)}
			</div>
		</div>
	);
}

const tabs = [
	["Members", "/w/$slug/members", ["owner", "editor", "viewer"]],
	["Keys and browsers", "/w/$slug/keys", ["owner", "editor", "viewer"]],
	["Approval rules", "/w/$slug/rules", ["owner", "editor", "viewer"]],
	["Audit log", "/w/$slug/audit", ["owner"]],
] as const;

/** The pages about the workspace itself. */
export function WorkspaceTabs() {
	const { workspace } = useWorkspace();
	return (
		<nav className={css.tabs} aria-label="Workspace">
			{tabs
				.filter(([, , roles]) => (roles as readonly Workspace["role"][]).includes(workspace.role))
				.map(([text, to]) => (
					<Link key={to} to={to} params={{ slug: slugOf(workspace) }} activeProps={{ "aria-current": "page" }}>
						{text}
					</Link>
				))}
		</nav>
	);
}

/** Shows a query's data, and what is instead of it while there is none. */
export function Loaded<T>({ query, children }: { query: UseQueryResult<T>; children: (data: T) => ReactNode }) {
	const failure = useFailure(query);
	if (query.data !== undefined) return children(query.data);
	if (failure) {
		if (failure instanceof SignalboxError && failure.status === 403)
			return (
				<Blank line="broken" title="Not for your role">
					{sentence(failure.message)}
				</Blank>
			);
		return <Failed error={failure} heading="h2" onRetry={() => void query.refetch()} />;
	}
	return (
		<div className={css.loading} role="status" aria-label="Loading">
			{[70, 52, 84, 61].map((w) => (
				<i key={w} style={{ width: `${w}%` }} />
			))}
		</div>
	);
}

/** A table that scrolls by itself where it is wider than the page. `head` has a right-aligned column as ["", "right"]. */
export function Table({
	label,
	head,
	children,
}: {
	label: string;
	head: (string | [text: string, where: "right" | "sr" | "wide"])[];
	children: ReactNode;
}) {
	return (
		<div className={css.scroller} tabIndex={0} role="region" aria-label={label}>
			<table className={css.table}>
				<thead>
					<tr>
						{head.map((h) => {
							const [text, where] = typeof h === "string" ? [h, undefined] : h;
							return (
								<th key={text} data-right={where === "right" || undefined} className={where === "wide" ? css.wide : undefined}>
									{where === "sr" ? <span className="sr">{text}</span> : text}
								</th>
							);
						})}
					</tr>
				</thead>
				<tbody>{children}</tbody>
			</table>
		</div>
	);
}

/** A labelled control. `children` renders it with the ids that tie hint and problem to it. */
export function Field({
	label,
	hint,
	problem,
	children,
}: {
	label: string;
	hint?: ReactNode;
	/** What is wrong with the value, and what would be right. */
	problem?: string | undefined;
	children: (control: { id: string; "aria-describedby"?: string; "aria-invalid"?: true }) => ReactNode;
}) {
	const id = useId();
	const about = hint || problem ? { "aria-describedby": `${id}-about` } : {};
	return (
		<div className={css.field}>
			<label htmlFor={id}>{label}</label>
			{children({ id, ...about, ...(problem ? { "aria-invalid": true as const } : {}) })}
			{(problem || hint) && (
				<p id={`${id}-about`} className={problem ? css.problem : css.hint}>
					{problem || hint}
				</p>
			)}
		</div>
	);
}

/** Why something was refused, in the server's words; it is read out when it appears. */
export function Refused({ error }: { error: Error | null }) {
	return (
		<div role="alert" className="empty:hidden">
			{error && <Notice tone="stop">{sentence(error.message)}</Notice>}
		</div>
	);
}

/** A share of something, as a bar. `mark` is a threshold on it, in per cent. */
export function Bar({
	share,
	label,
	tone,
	mark,
}: {
	share: number;
	label: string;
	tone?: "live" | "wait" | "stop" | undefined;
	mark?: number;
}) {
	return (
		<span className={css.bar} role="img" aria-label={label}>
			<i data-tone={tone} style={{ width: `${Math.max(0, Math.min(100, share))}%` }} />
			{mark !== undefined && <b style={{ left: `${mark}%` }} />}
		</span>
	);
}
