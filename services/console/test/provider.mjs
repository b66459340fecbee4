// A model provider of the tests' own: it accepts one key, and has a sign-in with a code that is
// typed on another device (RFC 8628).
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import path from "node:path";

/** Starts the provider, which is called house and accepts the key house-key-4Qx7. */
export async function startProvider() {
	let approved = false;
	const server = createServer(async (request, response) => {
		for await (const _ of request);
		const answer = (status, body) => {
			response.writeHead(status, { "Content-Type": "application/json", "Cache-Control": "no-store" });
			response.end(JSON.stringify(body));
		};
		switch (request.url) {
			case "/api/models":
				return request.headers.authorization === "Bearer house-key-4Qx7" ? answer(200, { data: [] }) : answer(401, {});
			case "/device":
				return answer(200, {
					device_code: "device",
					user_code: "KTRX-4M9P",
					verification_uri: `${url}/approve`,
					expires_in: 600,
					interval: 1,
				});
			case "/token":
				return approved
					? answer(200, { access_token: "access", token_type: "bearer", expires_in: 3600, refresh_token: "refresh" })
					: answer(400, { error: "authorization_pending" });
			default:
				return answer(404, {});
		}
	});
	await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
	const url = `http://127.0.0.1:${server.address().port}`;
	const dir = mkdtempSync(path.join(tmpdir(), "signalbox-house-"));
	const write = (name, text) => {
		mkdirSync(path.join(dir, name));
		writeFileSync(path.join(dir, name, "house.yaml"), text);
	};
	write(
		"profiles",
		`name: house\ndefault_for: house\ndialect: openai\nbase_url: ${url}/api\nauth: {header: authorization, scheme: Bearer}\ncheck: {path: /models}\n`,
	);
	write(
		"providers",
		`name: house\nprofile: house\nendpoints: {authorize: ${url}/authorize, token: ${url}/token, device: ${url}/device}\nclient: {auth: none}\n`,
	);
	return {
		/** What Signalbox needs to know of it. */
		environment: {
			CREDENTIAL_BROKER_ALLOW_PRIVATE: "true",
			CREDENTIAL_BROKER_PROFILES: path.join(dir, "profiles"),
			CREDENTIAL_BROKER_OAUTH_PROVIDERS: path.join(dir, "providers"),
			CREDENTIAL_BROKER_OAUTH_CLIENTS: "house=us",
		},
		/** The person types the code. */
		approve: () => (approved = true),
		stop() {
			server.close();
			rmSync(dir, { recursive: true, force: true });
		},
	};
}
