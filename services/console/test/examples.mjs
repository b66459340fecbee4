// Builds the pages of examples/, and code of READMEs, with the packages that are installed here.
import { createServer } from "node:http";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "vite";

const consoleDir = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "..");
const clients = path.resolve(consoleDir, "../e2e/node");
const examples = path.resolve(consoleDir, "../../examples");

// Names under which those packages are installed for the end-to-end tests.
const aiSDK = { "@ai-sdk/react": "react7", ai: "ai7" };

/** Resolves the packages of files outside of the console: those of chats from the end-to-end tests' clients, others from the console. */
const installed = {
	name: "installed",
	enforce: "pre",
	resolveId(name, importer) {
		if (!importer || importer.includes("node_modules") || /^[./\0]/.test(name)) return null;
		const chat = importer.startsWith(path.join(examples, "use-chat"));
		return this.resolve(aiSDK[name] ?? name, path.join(chat ? clients : consoleDir, "package.json"), { skipSelf: true });
	},
};

/** Builds a page and serves it at a port. */
export async function servePage(name, port) {
	const { output } = await build({
		root: path.join(examples, name),
		configFile: false,
		logLevel: "error",
		plugins: [installed],
		build: { write: false, target: "es2023", minify: false, modulePreload: false },
	});
	const files = new Map(output.map((f) => [`/${f.fileName}`, f.code ?? f.source]));
	const server = createServer((req, res) => {
		const { pathname } = new URL(req.url, "http://localhost");
		const html = pathname === "/";
		const body = files.get(html ? "/index.html" : pathname);
		res.writeHead(body ? 200 : 404, { "Content-Type": html ? "text/html" : "text/javascript" }).end(body);
	});
	await new Promise((resolve) => server.listen(port, "127.0.0.1", resolve));
	const stop = () =>
		new Promise((resolve) => {
			server.close(resolve);
			server.closeAllConnections();
		});
	return { stop };
}

/** Bundles a module for Node, and returns its source. */
export async function bundle(file) {
	const { output } = await build({
		root: path.dirname(file),
		configFile: false,
		logLevel: "error",
		plugins: [installed],
		ssr: { noExternal: true },
		build: { write: false, ssr: file, target: "node20" },
	});
	return output[0].code;
}
