{{- /*
The environment that the services with a database share:
(dict "root" $ "name" "gateway" "role" "signalbox_gateway").
*/ -}}
{{- define "signalbox.serviceEnv" -}}
{{- $prefix := .name | upper | replace "-" "_" -}}
{{ include "signalbox.fromSecret" (dict "root" .root "name" "DB_PASSWORD" "key" (printf "%s_DB_PASSWORD" $prefix)) }}
{{ include "signalbox.databaseURL" (dict "root" .root "role" .role "direct" (has .name (list "agent-runner" "tool-executor"))) }}
- name: NATS_URL
  value: {{ include "signalbox.natsURL" .root | quote }}
{{- if .root.Values.nats.auth }}
{{ include "signalbox.fromSecret" (dict "root" .root "name" "NATS_PASSWORD" "key" (printf "%s_NATS_PASSWORD" $prefix)) }}
{{- end }}
{{- end -}}

{{- /* SERVICE_KEY or TRUSTED_KEYS of a service: (dict "root" $ "name" "gateway" "variable" "SERVICE_KEY"). */ -}}
{{- define "signalbox.key-of" -}}
{{ include "signalbox.fromSecret" (dict "root" .root "name" .variable "key" (printf "%s_%s" (.name | upper | replace "-" "_") .variable)) }}
{{- end -}}

{{- /*
A program with its ServiceAccount, Service, pods, PodDisruptionBudget and autoscaler.

  root        $
  name        of the program, its image and its component
  port        of its listener
  opsPort     of /health, /ready and /metrics
  env         what the chart sets, as YAML
  drain       the variable that takes drainSeconds; none if the program has no such setting
  kind        Deployment, or StatefulSet for pods with names of their own
  seccomp     a profile of the node's instead of the runtime's
  volumes, mounts  as YAML; /tmp is an emptyDir of tmpSize, if it is set
*/ -}}
{{- define "signalbox.workload" -}}
{{- $root := .root -}}
{{- $v := index $root.Values (include "signalbox.key" .name) -}}
{{- $pod := merge (pick $v "nodeSelector" "tolerations" "affinity" "topologySpread" "priorityClassName" "podAnnotations" "podLabels") $root.Values.podDefaults -}}
{{- if hasKey $v "topologySpread" }}{{ $_ := set $pod "topologySpread" $v.topologySpread }}{{ end -}}{{- /* merge ignores an empty value */ -}}
{{- $full := printf "%s-%s" (include "signalbox.fullname" $root) .name -}}
{{- $one := dict "root" $root "name" .name -}}
{{- $scheme := include "signalbox.scheme" $one | upper -}}
{{- $kind := .kind | default "Deployment" -}}
{{- $scaling := $v.autoscaling | default dict -}}
{{- $keda := $v.keda | default dict -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $full }}
  labels: {{- include "signalbox.labels" $one | nindent 4 }}
  {{- with $v.serviceAccountAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
---
apiVersion: v1
kind: Service
metadata:
  name: {{ $full }}
  labels: {{- include "signalbox.labels" $one | nindent 4 }}
spec:
  {{- if eq $kind "StatefulSet" }}
  clusterIP: None
  {{- end }}
  selector: {{ include "signalbox.match" $one }}
  ports:
    - { name: http, port: {{ .port }}, targetPort: http, appProtocol: {{ if eq .name "gateway" }}http{{ else if eq $scheme "HTTPS" }}https{{ else }}kubernetes.io/h2c{{ end }} }
    {{- if ne (int .port) (int .opsPort) }}
    - { name: ops, port: {{ .opsPort }}, targetPort: ops }
    {{- end }}
---
apiVersion: apps/v1
kind: {{ $kind }}
metadata:
  name: {{ $full }}
  labels: {{- include "signalbox.labels" $one | nindent 4 }}
spec:
  {{- if not (or $scaling.enabled $keda.enabled) }}
  replicas: {{ $v.replicas }}
  {{- end }}
  {{- if eq $kind "Deployment" }}
  # A new pod is ready before an old one stops.
  strategy: { type: RollingUpdate, rollingUpdate: { maxUnavailable: 0, maxSurge: 1 } }
  {{- else }}
  serviceName: {{ $full }}
  podManagementPolicy: Parallel
  {{- end }}
  selector: { matchLabels: {{ include "signalbox.match" $one }} }
  template:
    metadata:
      labels:
        {{- include "signalbox.selector" $one | nindent 8 }}
        {{- with $pod.podLabels }}{{ toYaml . | nindent 8 }}{{ end }}
      {{- with $pod.podAnnotations }}
      annotations: {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      serviceAccountName: {{ $full }}
      automountServiceAccountToken: false
      enableServiceLinks: false
      {{- with include "signalbox.pullSecrets" $root | trim }}{{ . | nindent 6 }}{{ end }}
      # The pause before SIGTERM, the drain, and a margin for what is written at the end.
      terminationGracePeriodSeconds: {{ add $root.Values.preStopSeconds ($v.drainSeconds | default 5) 10 }}
      securityContext:
        {{- include "signalbox.podSecurity" dict | nindent 8 }}
      {{- with $pod.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with $pod.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $pod.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $pod.affinity }}
      affinity: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- if $pod.topologySpread }}
      topologySpreadConstraints:
        {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
        - maxSkew: 1
          topologyKey: {{ . }}
          whenUnsatisfiable: {{ $pod.topologySpread }}
          labelSelector: { matchLabels: {{ include "signalbox.match" $one }} }
          matchLabelKeys: [{{ if eq $kind "Deployment" }}pod-template-hash{{ else }}controller-revision-hash{{ end }}]
        {{- end }}
      {{- end }}
      containers:
        - name: {{ .name }}
          image: {{ include "signalbox.image" $one | quote }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          ports:
            - { name: http, containerPort: {{ .port }} }
            {{- if ne (int .port) (int .opsPort) }}
            - { name: ops, containerPort: {{ .opsPort }} }
            {{- end }}
          env:
            {{- .env | trim | nindent 12 }}
            {{- if ne .name "simulator" }}
            {{- with include "signalbox.tlsEnv" $one | trim }}{{ . | nindent 12 }}{{ end }}
            {{- end }}
            {{- with .drain }}
            - { name: {{ . }}, value: {{ printf "%ds" (int $v.drainSeconds) }} }
            {{- end }}
            - { name: LOG_LEVEL, value: {{ $root.Values.logLevel }} }
            {{- with ternary "" $root.Values.tracing.endpoint (eq .name "simulator") }}
            - { name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ . | quote }} }
            {{- end }}
            {{- range $name, $value := $v.settings }}
            - { name: {{ $name }}, value: {{ include "signalbox.scalar" $value | quote }} }
            {{- end }}
            {{- range $name, $from := $v.settingsFrom }}
            - { name: {{ $name }}, valueFrom: { secretKeyRef: { name: {{ $from.secret }}, key: {{ $from.key }} } } }
            {{- end }}
          # A program starts within seconds; the rest is for a slow node.
          startupProbe: { httpGet: { path: /health, port: {{ .opsPort }}{{ if eq $scheme "HTTPS" }}, scheme: HTTPS{{ end }} }, periodSeconds: 1, timeoutSeconds: 3, failureThreshold: 60 }
          # /health is about the process alone: a restart mends nothing while PostgreSQL is down.
          livenessProbe: { httpGet: { path: /health, port: {{ .opsPort }}{{ if eq $scheme "HTTPS" }}, scheme: HTTPS{{ end }} }, periodSeconds: 10, timeoutSeconds: 5, failureThreshold: 6 }
          readinessProbe: { httpGet: { path: {{ .ready | default "/ready" }}, port: {{ .opsPort }}{{ if eq $scheme "HTTPS" }}, scheme: HTTPS{{ end }} }, periodSeconds: 3, timeoutSeconds: 5, failureThreshold: 2 }
          # Until every node has taken the pod out of the Service.
          lifecycle: { preStop: { sleep: { seconds: {{ $root.Values.preStopSeconds }} } } }
          {{- with $v.resources }}
          resources: {{- toYaml . | nindent 12 }}
          {{- end }}
          securityContext:
            {{- include "signalbox.containerSecurity" . | nindent 12 }}
            {{- with .seccomp }}
            seccompProfile: { type: Localhost, localhostProfile: {{ . }} }
            {{- end }}
          volumeMounts:
            {{- with .mounts }}{{ . | trim | nindent 12 }}{{ end }}
            {{- with .role }}{{ include "signalbox.databaseMount" $root | trim | nindent 12 }}{{ end }}
            {{- if ne .name "simulator" }}
            {{- with include "signalbox.tlsMount" $one | trim }}{{ . | nindent 12 }}{{ end }}
            {{- end }}
            - { name: tmp, mountPath: /tmp }
            {{- range $v.files }}
            - { name: {{ printf "file-%s" .name }}, mountPath: {{ .mountPath | quote }}, readOnly: true }
            {{- end }}
      volumes:
        {{- with .volumes }}{{ . | trim | nindent 8 }}{{ end }}
        {{- with .role }}{{ include "signalbox.databaseVolume" $root | trim | nindent 8 }}{{ end }}
        {{- if ne .name "simulator" }}
        {{- with include "signalbox.tlsVolume" $one | trim }}{{ . | nindent 8 }}{{ end }}
        {{- end }}
        - { name: tmp, emptyDir: { sizeLimit: {{ .tmpSize | default "64Mi" }} } }
        {{- range $v.files }}
        - name: {{ printf "file-%s" .name }}
          {{- if .configMap }}
          configMap: { name: {{ .configMap }} }
          {{- else }}
          secret: { secretName: {{ .secret }}, defaultMode: 0440 }
          {{- end }}
        {{- end }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $full }}
  labels: {{- include "signalbox.labels" $one | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector: { matchLabels: {{ include "signalbox.match" $one }} }
{{- if $scaling.enabled }}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ $full }}
  labels: {{- include "signalbox.labels" $one | nindent 4 }}
spec:
  scaleTargetRef: { apiVersion: apps/v1, kind: {{ $kind }}, name: {{ $full }} }
  minReplicas: {{ $v.replicas }}
  maxReplicas: {{ $scaling.maxReplicas }}
  behavior: {{ include "signalbox.scaling" $root }}
  metrics:
    {{- with $scaling.targetCPU }}
    - { type: Resource, resource: { name: cpu, target: { type: Utilization, averageUtilization: {{ . }} } } }
    {{- end }}
    {{- with $scaling.metrics }}{{ toYaml . | nindent 4 }}{{ end }}
{{- end }}
{{- if $keda.enabled }}
---
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  name: {{ $full }}
  labels: {{- include "signalbox.labels" $one | nindent 4 }}
spec:
  scaleTargetRef: { name: {{ $full }} }
  minReplicaCount: {{ $v.replicas }}
  maxReplicaCount: {{ $keda.maxReplicas }}
  pollingInterval: 5
  advanced: { horizontalPodAutoscalerConfig: { behavior: {{ include "signalbox.scaling" $root }} } }
  triggers:
    - type: nats-jetstream
      metadata:
        natsServerMonitoringEndpoint: {{ $root.Values.nats.monitoring | quote }}
        account: SIGNALBOX
        stream: {{ .stream }}
        consumer: {{ .consumer }}
        lagThreshold: {{ $keda.lag | quote }}
{{- end }}
{{- end -}}

{{- /* Pods leave slowly: each drains for a while, and streams, rooms and runs move. */ -}}
{{- define "signalbox.scaling" -}}
{ scaleDown: { stabilizationWindowSeconds: {{ .Values.scaleDownSeconds }}, policies: [{ type: Pods, value: 1, periodSeconds: 60 }] } }
{{- end -}}

{{- /* A setting as a program reads it: numbers without an exponent. */ -}}
{{- define "signalbox.scalar" -}}
{{- if kindIs "float64" . -}}
{{- if eq (floor .) . -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- else -}}{{ . }}{{- end -}}
{{- end -}}
