import { createClient, SignalboxError } from "@signalbox/client";
import type { QueryClient } from "@tanstack/react-query";
import { createRootRoute, createRoute, createRouter, lazyRouteComponent, Outlet, redirect } from "@tanstack/react-router";
import { everywhere, meQuery, signedOut, slugOf, unwrap, type Workspace } from "./client.ts";
import { keeps } from "./document/kept.ts";
import { Frame } from "./Frame.tsx";
import type { DocumentSearch } from "./routes/document.tsx";
import { Failed, NotHere } from "./routes/failed.tsx";
import type { RunSearch } from "./routes/run.tsx";
import type { RunsSearch } from "./routes/runs.tsx";
import { SessionPage } from "./routes/session.tsx";
import type { SessionSearch } from "./routes/sessions.tsx";
import { usageSearch } from "./search.ts";
import { place } from "./signout.ts";
import { keepFor } from "./storage.ts";

/** The workspaces of the person who is signed in. */
export const workspacesQuery = {
	queryKey: ["workspaces"],
	queryFn: () => unwrap(everywhere.api.GET("/api/workspaces")).then((b) => b.workspaces),
	staleTime: 60_000,
};

/** Returns the person's workspaces, or sends them to the sign-in. */
async function workspacesOf(queries: QueryClient) {
	// After a sign-out in another tab, nobody or somebody else may be signed in.
	const known = keeps() && queries.getQueryData(meQuery.queryKey);
	const staleTime = known ? "static" : 0;
	try {
		const [workspaces, me] = await Promise.all([
			queries.fetchQuery({ ...workspacesQuery, staleTime }),
			queries.fetchQuery({ ...meQuery, staleTime }),
		]);
		if (!known) keepFor(me.member_id);
		return workspaces;
	} catch (e) {
		if (e instanceof SignalboxError && e.status === 401) {
			place.keep();
			throw redirect({ to: "/sign-in" });
		}
		throw e;
	}
}

const LazyRuns = lazyRouteComponent(() => import("./routes/runs.tsx"), "RunsPage");
const LazySessions = lazyRouteComponent(() => import("./routes/sessions.tsx"), "SessionsPage");
const LazyRun = lazyRouteComponent(() => import("./routes/run.tsx"), "RunPage");

const LazySignIn = lazyRouteComponent(() => import("./routes/sign-in.tsx"), "SignInPage");
const LazyDocument = lazyRouteComponent(() => import("./routes/document.tsx"), "DocumentPage");
const LazyDocuments = lazyRouteComponent(() => import("./routes/documents.tsx"), "DocumentsPage");
const LazyShared = lazyRouteComponent(() => import("./routes/shared.tsx"), "SharedPage");

/** Reports whether a workspace has no session yet, that is whether its owner is shown around. */
async function isEmpty(workspace: Workspace): Promise<boolean> {
	if (workspace.role === "viewer") return false;
	const { api } = createClient({ workspace: workspace.id });
	return unwrap(api.GET("/api/sessions", { params: { query: { limit: 1 } } })).then(
		(b) => b.sessions.length === 0,
		() => false,
	);
}

/** Makes the console's router. Every page of a workspace is below /w/<its slug>. */
export function createConsole(queries: QueryClient) {
	const root = createRootRoute({
		component: Outlet,
		notFoundComponent: NotHere,
		errorComponent: ({ error }) => <Failed error={error as Error} />,
	});
	const index = createRoute({
		getParentRoute: () => root,
		path: "/",
		beforeLoad: async () => {
			const [first] = await workspacesOf(queries);
			const back = place.take();
			if (first && back) throw redirect({ href: back });
			if (first) throw redirect({ to: (await isEmpty(first)) ? "/w/$slug/welcome" : "/w/$slug", params: { slug: slugOf(first) } });
		},
		component: () => <Failed error={new SignalboxError("You are a member of no workspace. An owner can invite you.", 403)} />,
	});
	const signIn = createRoute({
		getParentRoute: () => root,
		path: "/sign-in",
		validateSearch: (s: Record<string, unknown>): { ended?: boolean } => (s.ended === true ? { ended: true } : {}),
		component: function SignIn() {
			return <LazySignIn ended={signIn.useSearch().ended ?? false} />;
		},
	});
	const link = createRoute({
		getParentRoute: () => root,
		path: "/in",
		component: lazyRouteComponent(() => import("./routes/sign-in.tsx"), "LinkPage"),
	});
	const shared = createRoute({
		getParentRoute: () => root,
		path: "/r/$share",
		component: function Shared() {
			const { share } = shared.useParams();
			return <LazyShared key={share} share={share} />;
		},
	});
	const workspace = createRoute({
		getParentRoute: () => root,
		path: "/w/$slug",
		shouldReload: () => !keeps() || undefined, // undefined: as usual, only when a workspace is entered
		loader: async ({ params }) => {
			const all = await workspacesOf(queries);
			return { all, current: all.find((w) => slugOf(w).slice(-8) === params.slug.slice(-8)) };
		},
		component: function Workspace() {
			const { all, current } = workspace.useLoaderData();
			return current ? <Frame workspaces={all} workspace={current} /> : <NotHere />;
		},
		notFoundComponent: NotHere,
	});
	const fresh = createRoute({
		getParentRoute: () => workspace,
		path: "/",
		component: lazyRouteComponent(() => import("./routes/new.tsx"), "NewPage"),
	});
	const session = createRoute({
		getParentRoute: () => workspace,
		path: "/s/$id",
		validateSearch: (s: Record<string, unknown>): { doc?: string } => (typeof s.doc === "string" && s.doc ? { doc: s.doc } : {}),
		component: function Session() {
			const { id } = session.useParams();
			const { doc } = session.useSearch();
			return <SessionPage key={id} id={id} {...(doc === undefined ? {} : { doc })} />;
		},
	});
	const sessions = createRoute({
		getParentRoute: () => workspace,
		path: "/sessions",
		validateSearch: (s: Record<string, unknown>): SessionSearch => ({
			...((typeof s.q === "string" || typeof s.q === "number") && s.q !== "" ? { q: String(s.q) } : {}),
			...(s.state === "running" || s.state === "waiting" ? { state: s.state } : {}),
			...(s.archived === true ? { archived: true } : {}),
		}),
		component: function Sessions() {
			return <LazySessions search={sessions.useSearch()} />;
		},
	});
	const inbox = createRoute({
		getParentRoute: () => workspace,
		path: "/inbox",
		component: lazyRouteComponent(() => import("./routes/inbox.tsx"), "InboxPage"),
	});
	const documents = createRoute({
		getParentRoute: () => workspace,
		path: "/documents",
		validateSearch: (s: Record<string, unknown>): { q?: string } => (typeof s.q === "string" && s.q ? { q: s.q } : {}),
		component: function Documents() {
			return <LazyDocuments search={documents.useSearch()} />;
		},
	});
	const runs = createRoute({
		getParentRoute: () => workspace,
		path: "/runs",
		validateSearch: (s: Record<string, unknown>): RunsSearch => ({
			...(["active", "waiting", "failed", "cancelled"].includes(String(s.state))
				? { state: s.state as NonNullable<RunsSearch["state"]> }
				: {}),
			...(typeof s.session === "string" && s.session ? { session: s.session } : {}),
		}),
		component: function Runs() {
			return <LazyRuns search={runs.useSearch()} />;
		},
	});
	const run = createRoute({
		getParentRoute: () => workspace,
		path: "/runs/$id",
		validateSearch: (s: Record<string, unknown>): RunSearch => ({
			...(typeof s.step === "string" || typeof s.step === "number" ? { step: String(s.step) } : {}),
			...(s.view === "conversation" || s.view === "log" ? { view: s.view } : {}),
		}),
		component: function Run() {
			const { id } = run.useParams();
			return <LazyRun key={id} id={id} search={run.useSearch()} />;
		},
	});
	const document = createRoute({
		getParentRoute: () => workspace,
		path: "/d/$id",
		validateSearch: (s: Record<string, unknown>): DocumentSearch => ({
			...(s.history === true ? { history: true } : {}),
			...(typeof s.v === "number" && s.v > 0 ? { v: s.v } : {}),
		}),
		component: function Document() {
			const { id } = document.useParams();
			return <LazyDocument key={id} id={id} search={document.useSearch()} />;
		},
	});
	// Each of these is a chunk of its own, fetched when a link to it is pointed at.
	const at = <P extends string>(path: P, component: ReturnType<typeof lazyRouteComponent>) =>
		createRoute({ getParentRoute: () => workspace, path, component });
	const operate = [
		at(
			"/welcome",
			lazyRouteComponent(() => import("./routes/welcome.tsx"), "WelcomePage"),
		),
		at(
			"/connections",
			lazyRouteComponent(() => import("./routes/connections.tsx"), "ConnectionsPage"),
		),
		at(
			"/accounts",
			lazyRouteComponent(() => import("./routes/accounts.tsx"), "AccountsPage"),
		),
		at(
			"/more",
			lazyRouteComponent(() => import("./routes/more.tsx"), "MorePage"),
		),
		at(
			"/members",
			lazyRouteComponent(() => import("./routes/members.tsx"), "MembersPage"),
		),
		at(
			"/keys",
			lazyRouteComponent(() => import("./routes/keys.tsx"), "KeysPage"),
		),
		at(
			"/rules",
			lazyRouteComponent(() => import("./routes/rules.tsx"), "RulesPage"),
		),
	] as const;
	const audit = createRoute({
		getParentRoute: () => workspace,
		path: "/audit",
		validateSearch: (s: Record<string, unknown>): { log?: "credentials" | "mcp" } =>
			s.log === "credentials" || s.log === "mcp" ? { log: s.log } : {},
		component: lazyRouteComponent(() => import("./routes/audit.tsx"), "AuditPage"),
	});
	const usage = createRoute({
		getParentRoute: () => workspace,
		path: "/usage",
		validateSearch: usageSearch,
		component: lazyRouteComponent(() => import("./routes/usage.tsx"), "UsagePage"),
	});
	const router = createRouter({
		routeTree: root.addChildren([
			index,
			signIn,
			link,
			shared,
			workspace.addChildren([fresh, session, sessions, inbox, documents, document, runs, run, ...operate, audit, usage]),
		]),
		defaultErrorComponent: ({ error }) => <Failed error={error as Error} />,
		defaultPreload: "intent",
		scrollRestoration: true,
	});
	// The session of a page that is open may end: it expires, or is ended elsewhere.
	signedOut.tell = () => {
		if (!location.pathname.startsWith("/w/") || !queries.getQueryData(workspacesQuery.queryKey)) return;
		// A page that alone has what was written there warns before it is left, and stays, unless its member has signed out.
		if (keeps() && !dispatchEvent(new Event("beforeunload", { cancelable: true }))) return;
		place.keep();
		queries.clear();
		void router.navigate({ to: "/sign-in", search: { ended: true } });
	};
	return router;
}

declare module "@tanstack/react-router" {
	interface Register {
		router: ReturnType<typeof createConsole>;
	}
}
