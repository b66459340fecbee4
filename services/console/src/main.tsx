import { SignalboxError } from "@signalbox/client";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { createConsole } from "./router.tsx";
import "./styles/base.css";
import { applyTheme } from "./theme.ts";

applyTheme();
const queries = new QueryClient({
	defaultOptions: {
		queries: {
			staleTime: 5_000,
			retry: (failures, e) => failures < 3 && !(e instanceof SignalboxError && e.status >= 400 && e.status < 500),
		},
	},
});
const app = document.getElementById("app");
if (app)
	createRoot(app).render(
		<StrictMode>
			<QueryClientProvider client={queries}>
				<RouterProvider router={createConsole(queries)} />
			</QueryClientProvider>
		</StrictMode>,
	);
