import { Copy } from "lucide-react";
import { useEffect, useRef, useState } from "react";
import { copyText } from "../insecure.ts";
import { Button } from "./controls.tsx";

/** Copies a text and says that it did. */
export function CopyButton({
	text,
	look = "plain",
	children = "Copy",
}: {
	text: string;
	look?: "plain" | "primary" | "quiet";
	children?: string;
}) {
	const [done, setDone] = useState(false);
	const back = useRef<ReturnType<typeof setTimeout>>(undefined);
	useEffect(() => () => clearTimeout(back.current), []);
	const copy = async () => {
		await copyText(text);
		setDone(true);
		clearTimeout(back.current);
		back.current = setTimeout(() => setDone(false), 2000);
	};
	return (
		<Button small look={look} icon={Copy} onClick={() => void copy().catch(() => setDone(false))}>
			<span aria-live="polite">{done ? "Copied" : children}</span>
		</Button>
	);
}
