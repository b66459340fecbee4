import bash from "highlight.js/lib/languages/bash";
import c from "highlight.js/lib/languages/c";
import cpp from "highlight.js/lib/languages/cpp";
import csharp from "highlight.js/lib/languages/csharp";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import dockerfile from "highlight.js/lib/languages/dockerfile";
import go from "highlight.js/lib/languages/go";
import ini from "highlight.js/lib/languages/ini";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import kotlin from "highlight.js/lib/languages/kotlin";
import makefile from "highlight.js/lib/languages/makefile";
import markdown from "highlight.js/lib/languages/markdown";
import php from "highlight.js/lib/languages/php";
import protobuf from "highlight.js/lib/languages/protobuf";
import python from "highlight.js/lib/languages/python";
import ruby from "highlight.js/lib/languages/ruby";
import rust from "highlight.js/lib/languages/rust";
import shell from "highlight.js/lib/languages/shell";
import sql from "highlight.js/lib/languages/sql";
import swift from "highlight.js/lib/languages/swift";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";
import { createLowlight } from "lowlight";
import { Fragment, type ReactNode, useMemo } from "react";
import styles from "./Highlighted.module.css";

const lowlight = createLowlight({
	bash,
	c,
	cpp,
	csharp,
	css,
	diff,
	dockerfile,
	go,
	ini,
	java,
	javascript,
	json,
	kotlin,
	makefile,
	markdown,
	php,
	protobuf,
	python,
	ruby,
	rust,
	shell,
	sql,
	swift,
	typescript,
	xml,
	yaml,
});

/** The colours, and what of the code has them. The rest has the text's own. */
const colours: Record<string, string[]> = {
	key: ["keyword", "type", "attr", "attribute", "name", "selector-tag", "selector-class", "selector-id", "built_in", "section", "variable"],
	str: ["string", "regexp", "symbol", "addition", "link", "code", "char"],
	num: ["number", "literal", "deletion", "bullet"],
	aside: ["comment", "quote", "meta", "doctag"],
};
const colourOf = new Map(Object.entries(colours).flatMap(([colour, scopes]) => scopes.map((s) => [`hljs-${s}`, colour])));

type Node = ReturnType<typeof lowlight.highlight>["children"][number];

/** Code in colours, once for each text; as it is if the language is not known. */
export function Highlighted({ text, language }: { text: string; language: string }) {
	return useMemo(() => highlight(text, language), [text, language]);
}

export function highlight(text: string, language: string): ReactNode {
	return lowlight.registered(language) ? lowlight.highlight(language, text).children.map(element) : text;
}

function element(n: Node, i: number): ReactNode {
	if (n.type === "text") return n.value;
	if (n.type !== "element") return null;
	const [scope] = Array.isArray(n.properties.className) ? n.properties.className : [];
	const colour = colourOf.get(String(scope));
	const children = n.children.map(element);
	return colour ? (
		<span key={i} className={styles[colour]}>
			{children}
		</span>
	) : (
		<Fragment key={i}>{children}</Fragment>
	);
}
