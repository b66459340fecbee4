import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useEffect, useRef, useState } from "react";
import { everywhere, unwrap } from "../client.ts";
import { Button, Notice } from "../parts/controls.tsx";
import { Mark } from "../parts/Signal.tsx";
import { Kept } from "./failed.tsx";
import css from "./sign-in.module.css";

/** Exchanges a token or a link's key for a session, and goes to where the person was. */
function useSignIn() {
	const navigate = useNavigate();
	const queries = useQueryClient();
	return async (body: { token: string } | { key: string }) => {
		await unwrap(everywhere.api.POST("/api/sign-in", { body }));
		queries.clear();
		await navigate({ to: "/", replace: true });
	};
}

/** Signs a person in with the key in the link's fragment, which is never sent as a part of a URL. */
export function LinkPage() {
	const signIn = useSignIn();
	const [error, setError] = useState("");
	const used = useRef(false);
	useEffect(() => {
		if (used.current) return;
		used.current = true;
		const key = new URLSearchParams(location.hash.slice(1)).get("k") ?? "";
		history.replaceState(null, "", location.pathname);
		signIn({ key }).catch((e: Error) => setError(e.message));
	}, [signIn]);
	return error ? (
		<SignInPage problem={error} />
	) : (
		<p className="sr" role="status">
			Signing in
		</p>
	);
}

/** Signs a person in with a token. The session of a page that was open has ended, or there was none. */
export function SignInPage({ problem = "", ended = false }: { problem?: string; ended?: boolean }) {
	const signIn = useSignIn();
	const [token, setToken] = useState("");
	const [error, setError] = useState(problem);
	const [busy, setBusy] = useState(false);
	const company = useQuery({
		queryKey: ["sign-in"],
		queryFn: () => unwrap(everywhere.api.GET("/api/sign-in")).then((b) => b.company),
	}).data;
	// Who has signed in in another tab goes on in this one.
	const navigate = useNavigate();
	const back = useQuery({
		queryKey: ["signed-in"],
		enabled: ended,
		queryFn: () => everywhere.api.GET("/api/me").then((r) => r.response.ok),
		refetchOnWindowFocus: "always",
	}).data;
	useEffect(() => {
		if (back) void navigate({ to: "/", replace: true });
	}, [back, navigate]);
	useEffect(() => {
		document.title = "Sign in · Signalbox";
	}, []);
	return (
		<main className={css.gate}>
			<div className={css.art} aria-hidden="true">
				<Mark size={40} />
				<p>One person sees every line, knows what stands where, and nothing collides.</p>
			</div>
			<form
				className={css.form}
				onSubmit={(e) => {
					e.preventDefault();
					setBusy(true);
					signIn({ token: token.trim() }).catch((e: Error) => {
						setError(e.message);
						setBusy(false);
					});
				}}
			>
				<div>
					<h1 className="text-h1 font-bold">Sign in</h1>
					<p className="mt-1 mb-6 text-ink-2">
						{company ? (
							"With your company's account, or with a token."
						) : (
							<>
								Open the link that <code>signalbox up</code> printed, or paste a token.
							</>
						)}
					</p>
					{ended && !error && (
						<div className="mb-4" role="status">
							<Notice tone="wait">
								<b className="font-bold">You were signed out.</b> Sign in again to go on where you were. <Kept />
							</Notice>
						</div>
					)}
					{error && (
						<div className="mb-4" role="alert">
							<Notice tone="stop">{error.charAt(0).toUpperCase() + error.slice(1)}.</Notice>
						</div>
					)}
					{company && (
						<>
							<a className={css.company} href={company.path}>
								Continue with {company.name}
							</a>
							<p className={css.or}>or</p>
						</>
					)}
					<label className="font-mid" htmlFor="token">
						Token
					</label>
					<input
						id="token"
						type="password"
						autoComplete="off"
						spellCheck={false}
						value={token}
						onChange={(e) => setToken(e.target.value)}
						aria-describedby="token-hint"
						aria-invalid={Boolean(error)}
					/>
					<p id="token-hint" className="mt-1 mb-4 text-small text-ink-3">
						An access token, or what <code>signalbox token</code> prints.
					</p>
					<Button type="submit" look={company ? "plain" : "primary"} busy={busy} disabled={!token.trim()}>
						Sign in
					</Button>
				</div>
			</form>
		</main>
	);
}
