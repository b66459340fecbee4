// A company's sign-in page: an OpenID Connect provider whose people all have the same password: none.
import { createServer } from "node:net";
import Provider, { interactionPolicy } from "oidc-provider";

/** Returns a port of this machine that nothing uses. */
export async function freePort() {
	const server = createServer();
	await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
	const { port } = server.address();
	await new Promise((resolve) => server.close(resolve));
	return port;
}

/**
 * Starts the provider for a Signalbox at an address. Whoever signs in as ines has the address ines@example.com.
 * It remembers a browser's person, unless it is asked to have an account chosen (prompt=select_account).
 */
export async function startCompany(url) {
	const issuer = `http://127.0.0.1:${await freePort()}`;
	const redirect = `${url}/api/sign-in/oidc/callback`;
	const policy = interactionPolicy.base();
	policy.add(new interactionPolicy.Prompt({ name: "select_account", requestable: true }), 0);
	const provider = new Provider(issuer, {
		interactions: { policy },
		clients: [{ client_id: "signalbox", client_secret: "a secret of the client, for tests only", redirect_uris: [redirect] }],
		claims: { openid: ["sub"], email: ["email", "email_verified"], profile: ["name"] },
		conformIdTokenClaims: false, // the claims are in the ID token, as most providers have them
		cookies: { keys: ["for tests only"] },
		findAccount: (_, id) => ({
			accountId: id,
			claims: () => ({ sub: id, email: `${id}@example.com`, email_verified: true, name: id[0].toUpperCase() + id.slice(1) }),
		}),
	});
	provider.use(async (ctx, next) => {
		if (!/^\/interaction\/[^/]+$/.test(ctx.path) || ctx.method !== "GET") return next();
		const { prompt } = await provider.interactionDetails(ctx.req, ctx.res);
		if (prompt.name !== "select_account") return next();
		if (ctx.query.account)
			return provider.interactionFinished(ctx.req, ctx.res, { login: { accountId: ctx.query.account }, select_account: {} });
		ctx.type = "html";
		ctx.body = "<!doctype html><title>Acme</title><form><label>Which account? <input name=account></label><button>Go on</button></form>";
	});
	const server = provider.listen(new URL(issuer).port, "127.0.0.1");
	await new Promise((resolve) => server.once("listening", resolve));
	return {
		environment: {
			GATEWAY_OIDC_ISSUER: issuer,
			GATEWAY_OIDC_CLIENT_ID: "signalbox",
			GATEWAY_OIDC_CLIENT_SECRET: "a secret of the client, for tests only",
			GATEWAY_OIDC_REDIRECT_URL: redirect,
			GATEWAY_OIDC_NAME: "Acme",
		},
		stop: () => {
			server.closeAllConnections();
			server.close();
		},
	};
}
