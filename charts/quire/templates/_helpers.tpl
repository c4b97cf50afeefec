{{/* Names and labels. `part` is "operator" or "router"; call with (dict "root" $ "part" "router"). */}}

{{- define "quire.name" -}}
{{ printf "%s-%s" (.root.Release.Name | trunc 50 | trimSuffix "-") .part }}
{{- end }}

{{- define "quire.selector" -}}
app.kubernetes.io/name: quire-{{ .part }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "quire.labels" -}}
{{ include "quire.selector" . }}
app.kubernetes.io/part-of: quire
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Call with (dict "root" $ "image" $.Values.images.operator). */}}
{{- define "quire.image" -}}
{{ .root.Values.imagePrefix }}{{ .image.repository }}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end }}

{{/* Where the router answers inside the cluster. */}}
{{- define "quire.routerUrl" -}}
http://{{ include "quire.name" (dict "root" . "part" "router") }}.{{ .Release.Namespace }}
{{- end }}

{{/* The restricted Pod Security Standard. */}}
{{- define "quire.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "quire.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Who may come in: everybody, to the ports that are there. Call with (dict "root" $ "part" … "ports" (list …)). */}}
{{- define "quire.networkPolicy" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "quire.name" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "quire.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      {{- include "quire.selector" . | nindent 6 }}
  policyTypes: [Ingress]
  ingress:
    - ports:
        {{- range .ports }}
        - {port: {{ . }}, protocol: TCP}
        {{- end }}
{{- end }}

{{/* A ClusterRole with its binding, or a Role with its binding in each watched namespace. Call with (dict "root" $ "part" … "rules" …). */}}
{{- define "quire.grant" -}}
{{- $name := include "quire.name" . }}
{{- $root := .root }}
{{- $context := . }}
{{- range $namespace := $root.Values.watchNamespaces | default (list "") }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ if $namespace }}Role{{ else }}ClusterRole{{ end }}
metadata:
  name: {{ $name }}
  {{- with $namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "quire.labels" $context | nindent 4 }}
rules:
  {{- $context.rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ if $namespace }}RoleBinding{{ else }}ClusterRoleBinding{{ end }}
metadata:
  name: {{ $name }}
  {{- with $namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "quire.labels" $context | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ if $namespace }}Role{{ else }}ClusterRole{{ end }}
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ $name }}
    namespace: {{ $root.Release.Namespace }}
{{- end }}
{{- end }}

{{/* Whether the cluster has LeaderWorkerSets; `helm template` is told with --api-versions. */}}
{{- define "quire.operator.leaderWorkerSets" -}}
{{- if .Capabilities.APIVersions.Has "leaderworkerset.x-k8s.io/v1" }}true{{ end }}
{{- end }}
