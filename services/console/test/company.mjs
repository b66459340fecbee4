// A company's sign-in page: an OpenID Connect provider whose people all have the same password: none.
import { createServer } from "node:net";
import Provider from "oidc-provider";

/** Returns a port of this machine that nothing uses. */
export async function freePort() {
	const server = createServer();
	await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
	const { port } = server.address();
	await new Promise((resolve) => server.close(resolve));
	return port;
}

/** Starts the provider for a Signalbox at an address. Whoever signs in as ines has the address ines@example.com. */
export async function startCompany(url) {
	const issuer = `http://127.0.0.1:${await freePort()}`;
	const redirect = `${url}/api/sign-in/oidc/callback`;
	const provider = new Provider(issuer, {
		clients: [{ client_id: "signalbox", client_secret: "a secret of the client, for tests only", redirect_uris: [redirect] }],
		claims: { openid: ["sub"], email: ["email", "email_verified"], profile: ["name"] },
		conformIdTokenClaims: false, // the claims are in the ID token, as most providers have them
		cookies: { keys: ["for tests only"] },
		findAccount: (_, id) => ({
			accountId: id,
			claims: () => ({ sub: id, email: `${id}@example.com`, email_verified: true, name: id[0].toUpperCase() + id.slice(1) }),
		}),
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
