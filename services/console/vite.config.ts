import tailwind from "@tailwindcss/vite";
import react from "@vitejs/plugin-react";
import { defaultClientConditions, defaultServerConditions } from "vite";
import { defineConfig } from "vitest/config";

// `npm run dev` serves the console with a gateway behind it: SIGNALBOX_URL names the gateway and
// SIGNALBOX_TOKEN signs in.
const gateway = process.env.SIGNALBOX_URL ?? "http://127.0.0.1:8080";
const token = process.env.SIGNALBOX_TOKEN;

// What the first load shares with pages that are fetched later. In chunks of their own, as they would
// be, these modules compress worse by several kB.
const shared =
	/node_modules\/(react|react-dom|scheduler|@tanstack\/(react-router|router-core|history|react-query|query-core|react-store|store))\/|src\/((words|client|actions|storage|insecure|run\/figures)\.ts|(parts\/(controls|Composer|Signal)|routes\/failed|document\/Pane)\.tsx)/;

export default defineConfig({
	plugins: [react(), tailwind()],
	// The client's TypeScript, as in tsconfig.json: its dist/ is for those who install it.
	resolve: { conditions: ["@signalbox/source", ...defaultClientConditions] },
	ssr: { resolve: { conditions: ["@signalbox/source", ...defaultServerConditions] } }, // the units
	build: {
		target: "es2023",
		sourcemap: false,
		chunkSizeWarningLimit: 700,
		assetsInlineLimit: 0,
		rolldownOptions: { output: { codeSplitting: { groups: [{ name: "shared", test: shared }] } } },
	},
	server: {
		proxy: Object.fromEntries(
			["/api", "/ws", "/ready", "/openapi.json"].map((path) => [
				path,
				{ target: gateway, ws: path === "/ws", changeOrigin: true, headers: token ? { Authorization: `Bearer ${token}` } : {} },
			]),
		),
	},
	test: { include: ["src/**/*.test.ts", "packages/**/*.test.ts"] },
});
