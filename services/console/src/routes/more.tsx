import { Link } from "@tanstack/react-router";
import { ChevronRight, LogOut, Moon, Sun } from "lucide-react";
import { useState } from "react";
import { slugOf, useWorkspace } from "../client.ts";
import { Icon } from "../parts/controls.tsx";
import { Page, Refused } from "../parts/page.tsx";
import { places } from "../places.ts";
import { signOut } from "../signout.ts";
import { toggleTheme } from "../theme.ts";
import css from "./more.module.css";

/** On a phone, the places that the bar at the bottom has no room for. */
export function MorePage() {
	const { workspace } = useWorkspace();
	const [error, setError] = useState<Error | null>(null);
	return (
		<Page title="More" about={workspace.name}>
			<ul className={css.list}>
				{places
					.filter((p) => p.roles.includes(workspace.role))
					.map((p) => (
						<li key={p.to}>
							<Link to={p.to} params={{ slug: slugOf(workspace) }}>
								<Icon of={p.icon} />
								<span className="flex-1">{p.text}</span>
								<Icon of={ChevronRight} />
							</Link>
						</li>
					))}
				<li>
					<button type="button" onClick={toggleTheme}>
						<Icon of={document.documentElement.dataset.theme === "dark" ? Sun : Moon} />
						Light or dark
					</button>
				</li>
				<li>
					<button type="button" onClick={() => void signOut().catch(setError)}>
						<Icon of={LogOut} />
						Sign out
					</button>
				</li>
			</ul>
			<Refused error={error} />
		</Page>
	);
}
