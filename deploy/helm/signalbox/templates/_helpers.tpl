{{- /* The prefix of all names: the release's, with the chart's unless it is in there. */ -}}
{{- define "signalbox.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* The labels that select the pods of a component: (dict "root" $ "name" "gateway"). */ -}}
{{- define "signalbox.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .name }}
{{- end -}}

{{- define "signalbox.match" -}}
{ app.kubernetes.io/name: {{ .root.Chart.Name }}, app.kubernetes.io/instance: {{ .root.Release.Name }}, app.kubernetes.io/component: {{ .name }} }
{{- end -}}

{{- define "signalbox.labels" -}}
{{ include "signalbox.selector" . }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- /* The values of a component: (dict "root" $ "name" "agent-runner") has those of agentRunner. */ -}}
{{- define "signalbox.key" -}}
{{- $parts := splitList "-" . -}}
{{- first $parts }}{{ range rest $parts }}{{ title . }}{{ end -}}
{{- end -}}

{{- /* http or https, by whether a program has a certificate: (dict "root" $ "name" "gateway"). */ -}}
{{- define "signalbox.scheme" -}}
{{ ternary "https" "http" (and .root.Values.tls.enabled (ne .name "simulator")) }}
{{- end -}}

{{- define "signalbox.url" -}}
{{ include "signalbox.scheme" . }}://{{ include "signalbox.fullname" .root }}-{{ .name }}:{{ .port }}
{{- end -}}

{{- /* The image of a program. */ -}}
{{- define "signalbox.image" -}}
{{- $own := dict -}}
{{- with index .root.Values (include "signalbox.key" .name) -}}{{- $own = .image | default dict -}}{{- end -}}
{{- $tag := coalesce $own.tag .root.Values.image.tag .root.Chart.AppVersion -}}
{{ .root.Values.image.prefix }}{{ .name }}:{{ $tag }}
{{- end -}}

{{- /* The Secret with the passwords and keys. */ -}}
{{- define "signalbox.secret" -}}
{{- .Values.secrets.existing | default (printf "%s-secrets" (include "signalbox.fullname" .)) -}}
{{- end -}}

{{- /* A variable from the Secret: (dict "root" $ "name" "X" "key" "GATEWAY_X"). */ -}}
{{- define "signalbox.fromSecret" -}}
- name: {{ .name }}
  valueFrom: { secretKeyRef: { name: {{ include "signalbox.secret" .root }}, key: {{ .key }} } }
{{- end -}}

{{- /* DATABASE_URL of a role, whose password is in the variable DB_PASSWORD; direct if it has to pass by a pooler, too. */ -}}
{{- define "signalbox.databaseURL" -}}
{{- $d := .root.Values.database -}}
{{- $hosts := $d.hosts -}}
{{- if .root.Values.local.enabled -}}{{- $hosts = printf "%s-postgres:5432" (include "signalbox.fullname" .root) -}}{{- end -}}
{{- $parameters := $d.parameters -}}
{{- if $d.caSecret -}}{{- $parameters = printf "%s&sslrootcert=/etc/signalbox/postgres/ca.crt" $parameters -}}{{- end -}}
- name: DATABASE_URL
  value: {{ printf "postgres://%s:$(DB_PASSWORD)@%s/%s?%s" .role $hosts $d.name $parameters | quote }}
{{- if and .direct $d.directHosts }}
- name: DATABASE_DIRECT_URL
  value: {{ printf "postgres://%s:$(DB_PASSWORD)@%s/%s?%s" .role $d.directHosts $d.name $parameters | quote }}
{{- end }}
{{- end -}}

{{- define "signalbox.natsURL" -}}
{{- if .Values.local.enabled -}}
nats://{{ include "signalbox.fullname" . }}-nats:4222
{{- else -}}
{{ .Values.nats.url }}
{{- end -}}
{{- end -}}

{{- /* Ports for a policy, those of a list of addresses unless values name others: (dict "of" "a:5432,b:6432" "default" 5432 "ports" list). */ -}}
{{- define "signalbox.ports" -}}
{{- $ports := .ports -}}
{{- if not $ports -}}
{{- range splitList "," .of -}}
{{- with . | trimSuffix "/" -}}{{- $ports = append $ports (regexFind ":[0-9]+$" . | trimPrefix ":" | default $.default | int) -}}{{- end -}}
{{- end -}}
{{- end -}}
[{{ range $i, $port := $ports | default (list .default) | uniq }}{{ if $i }}, {{ end }}{ port: {{ $port }} }{{ end }}]
{{- end -}}

{{- /* What every container may not do: Pod Security "restricted" and a read-only root. */ -}}
{{- define "signalbox.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end -}}

{{- define "signalbox.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .user | default 65532 }}
runAsGroup: {{ .user | default 65532 }}
fsGroup: {{ .user | default 65532 }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: { type: RuntimeDefault }
{{- end -}}

{{- define "signalbox.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- /* The certificate authority of PostgreSQL. */ -}}
{{- define "signalbox.databaseMount" -}}
{{- if .Values.database.caSecret }}
- { name: postgres-ca, mountPath: /etc/signalbox/postgres, readOnly: true }
{{- end }}
{{- end -}}

{{- define "signalbox.databaseVolume" -}}
{{- with .Values.database.caSecret }}
- name: postgres-ca
  secret: { secretName: {{ . }}, items: [{ key: ca.crt, path: ca.crt }] }
{{- end }}
{{- end -}}

{{- /* TLS of a program: its certificate, and the authority of NATS: (dict "root" $ "name" "gateway"). */ -}}
{{- define "signalbox.tlsSecret" -}}
{{- index .root.Values.tls.secrets (include "signalbox.key" .name) | default (printf "%s-%s-tls" (include "signalbox.fullname" .root) .name) -}}
{{- end -}}

{{- define "signalbox.tlsEnv" -}}
{{- with .root.Values.tls }}
{{- if .enabled }}
- { name: TLS_CERT_FILE, value: /etc/signalbox/tls/tls.crt }
- { name: TLS_KEY_FILE, value: /etc/signalbox/tls/tls.key }
- { name: TLS_CA_FILE, value: /etc/signalbox/tls/ca.crt }
- { name: TLS_REQUIRED, value: {{ .required | quote }} }
{{- end }}
{{- end }}
{{- if and .root.Values.nats.caSecret (ne .name "browser") }}
- { name: NATS_CA_FILE, value: /etc/signalbox/nats/ca.crt }
{{- end }}
{{- end -}}

{{- define "signalbox.tlsMount" -}}
{{- if .root.Values.tls.enabled }}
- { name: tls, mountPath: /etc/signalbox/tls, readOnly: true }
{{- end }}
{{- if and .root.Values.nats.caSecret (ne .name "browser") }}
- { name: nats-ca, mountPath: /etc/signalbox/nats, readOnly: true }
{{- end }}
{{- end -}}

{{- define "signalbox.tlsVolume" -}}
{{- if .root.Values.tls.enabled }}
- name: tls
  secret: { secretName: {{ include "signalbox.tlsSecret" . }}, defaultMode: 0440, items: [{ key: tls.crt, path: tls.crt }, { key: tls.key, path: tls.key }, { key: ca.crt, path: ca.crt }] }
{{- end }}
{{- if and .root.Values.nats.caSecret (ne .name "browser") }}
- name: nats-ca
  secret: { secretName: {{ .root.Values.nats.caSecret }}, items: [{ key: ca.crt, path: ca.crt }] }
{{- end }}
{{- end -}}
